"""Shared by commands that call a broker: the connection, and how times are read and shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from escrowmq.cli.options import bad_option
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls

ANSWER_S = 30.0


@contextmanager
def asking(broker: str) -> Iterator[NativeCalls]:
    """Open a connection to the broker at ``HOST:PORT``."""
    from escrowmq.client.network.native_calls import NativeCalls

    host, _, port = broker.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestRefused("address_illegal", "write it as HOST:PORT", address=broker[:128])
    with NativeCalls(broker, answer_s=ANSWER_S) as calls:
        yield calls


def queues_of(calls: NativeCalls, topic: str) -> list[Any]:
    """Return the queues of a topic; none if the topic is unknown."""
    from escrowmq.protocol.native.headers import ListQueuesHeader
    from escrowmq.protocol.native.requests import NativeCode

    return list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))


def instant_ms(option: str, text: str) -> int:
    """Parse an option's time: milliseconds since 1970, or ISO 8601 with UTC as the default zone."""
    if text.isdecimal():
        return int(text)
    try:
        return iso_ms(text)
    except ValueError:
        allowed = "milliseconds since 1970, or a time as in 2026-11-16T12:00:00Z"
        raise bad_option(option, allowed, text[:64]) from None


def iso_ms(text: str) -> int:
    """Convert an ISO 8601 time to milliseconds since 1970; UTC is the default zone."""
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000)


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
