"""The options of the demo. It imports little, because the command imports it at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of one demo."""

    folder: Path
    orders: int
    kills: int
    seed: int
    with_xa: bool = False
