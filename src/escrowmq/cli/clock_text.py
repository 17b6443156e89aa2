"""What several commands say about a broker's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.cli.asking import duration

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer


def gap_of(told: StatusAnswer) -> str:
    """How the wall clock stands to store time."""
    apart = duration(abs(told.clock_gap_ms))
    match told.clock_gap:
        case "ahead":
            return (
                f"wall time is {apart} AHEAD and nobody vouches for it: store time does not follow"
            )
        case "behind":
            return f"wall time is {apart} BEHIND: store time never goes back"
        case "":
            return "unknown: the broker is of an older release"
        case _:
            return f"none to speak of: {apart}"


def deletion_of(told: StatusAnswer) -> str:
    """Whether messages are deleted for their age."""
    if not told.deletion_waits:
        return "goes on"
    ends = f", for {duration(told.deletion_waits_ms)} more" if told.deletion_waits_ms else ""
    return f"waits: {told.deletion_waits}{ends}"
