"""Options that many commands share. It imports little, because quick commands import it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.model.errors import RequestRefused

FileOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file; else $ESCROWMQ_CONFIG names one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting; may be repeated."),
]


def instant_ms(option: str, text: str) -> int:
    """Parse an option's time: milliseconds since 1970, or ISO 8601 with UTC as the default zone."""
    if text.isdecimal():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        allowed = "milliseconds since 1970, or a time as in 2026-11-16T12:00:00Z"
        raise RequestRefused("bad_option", allowed, option=option, value=text[:64]) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return int(instant.timestamp() * 1_000)
