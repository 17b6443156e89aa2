"""What the command line asks the demo for; light, it is imported with the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for."""

    folder: Path
    orders: int
    kills: int
    seed: int
    with_xa: bool = False
