"""Options that many commands share.  Light: commands that only ask a broker import it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FileOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file; else $ESCROWMQ_CONFIG names one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting; may be repeated."),
]
