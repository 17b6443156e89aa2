"""Text about a broker's clock that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.cli.asking import duration

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer


def gap_of(told: StatusAnswer) -> str:
    """Describe the gap between the wall clock and store time."""
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
    """Say whether retention deletes messages by age, and if not, what it waits for."""
    if not told.deletion_waits:
        return "goes on"
    ends = f", for {duration(told.deletion_waits_ms)} more" if told.deletion_waits_ms else ""
    return f"waits: {told.deletion_waits}{ends}"
