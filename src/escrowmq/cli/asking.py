"""Shared by commands that call a broker: its address, the connection, and how times are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls

DEFAULT_BROKER = "127.0.0.1:10911"
ANSWER_S = 30.0

BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker", "-b", metavar="HOST:PORT", envvar="ESCROWMQ_BROKER", help="Whom to ask."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]


@contextmanager
def asking(broker: str) -> Iterator[OwnCalls]:
    """Open a connection to the broker at ``HOST:PORT``."""
    from escrowmq.client.own_calls import OwnCalls

    host, _, port = broker.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestRefused("address_illegal", "write it as HOST:PORT", address=broker[:128])
    with OwnCalls(broker, answer_s=ANSWER_S) as calls:
        yield calls


def at(ms: int | None) -> str | None:
    """Format an instant in UTC; return None for None and for 0."""
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")


def duration(ms: int | None) -> str | None:
    """Format a duration in its two largest units."""
    if ms is None:
        return None
    parts: list[str] = []
    left = max(ms, 0)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if left >= size and len(parts) < 2:  # noqa: PLR2004 - two units
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts) or f"{left} ms"


def whoami() -> str:
    """Return ``user@host``, which the broker records with an order given by hand."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
