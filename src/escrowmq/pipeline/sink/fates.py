"""What becomes of the parts that an attempt has at other brokers than its home: what became of it.

Nothing else decides about a part: neither its age nor what its own broker knows of batches.  As
long as the home has not decided, or does not answer, it waits.
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
    """What is to be done with a part; None if it waits."""
    return None if state_at_home is None else _FATES.get(state_at_home)


def verdict_on_part(state_at_home: str | None, age_ms: int) -> VerdictKind | None:
    """The same if its home was asked long after the attempt was written.

    A home that does not know it, or no more, may have committed it or not: it is never delivered
    by a guess.  It is left for a day, as attempts are, and then kept for a person.
    """
    if state_at_home is None:
        return VerdictKind.PARK if age_ms >= AGE_MS_MAX else None
    return fate(state_at_home)
