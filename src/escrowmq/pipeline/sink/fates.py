"""Decides how parts of an attempt at other brokers end: as the attempt ended at its home.

Nothing else decides about a part, neither its age nor what its own broker knows of batches. A part
waits as long as its home has not decided or does not answer.
"""

from __future__ import annotations

from escrowmq.model.sink_attempt import AGE_MS_MAX
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.states import State

_FATES = {
    State.COMMITTED.label: VerdictKind.COMMIT,
    State.ROLLED_BACK.label: VerdictKind.ROLLBACK,
}


def fate(state_at_home: str | None) -> VerdictKind | None:
    """The verdict on a part; None if it waits."""
    return None if state_at_home is None else _FATES.get(state_at_home)


def verdict_on_part(state_at_home: str | None, age_ms: int) -> VerdictKind | None:
    """The verdict on a part whose home was asked long after the attempt was written.

    If the home does not know the attempt, or no longer knows it, the outcome is unknown. A guess
    must never deliver the part. It waits for a day, like other attempts, and is then parked for a
    person.
    """
    if state_at_home is None:
        return VerdictKind.PARK if age_ms >= AGE_MS_MAX else None
    return fate(state_at_home)
