"""States of a transaction, answers about it, and every transition between the states.

The transitions are data. The core looks them up, the reference page draws its diagram from them,
and the tests iterate over them. A transition without a row here does not exist.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from escrowmq.model.resolution import Resolution


class LabeledEnum(IntEnum):
    """Codes with a name for people."""

    @property
    def label(self) -> str:
        """The name that people, answers and refusals use, such as ``rolled_back``."""
        return self.name.lower()


class State(LabeledEnum):
    """State of a transaction. The codes are written to disk: never renumber, only add."""

    PREPARED = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    PARKED = 3


#: The states by code: a lookup takes a tenth of the time of calling the class.
STATES = tuple(State)


class Transition(NamedTuple):
    """One permitted transition; ``source`` is None where a transaction begins."""

    source: State | None
    event: str
    target: State


#: The state that each answer leads to. The opposite of a decision has no row: it is refused.
RESOLVES: dict[tuple[State, Resolution], State] = {
    (State.PREPARED, Resolution.COMMIT): State.COMMITTED,
    (State.PREPARED, Resolution.ROLLBACK): State.ROLLED_BACK,
    # A repeat is answered as the first time, because that first reply may have been lost.
    (State.COMMITTED, Resolution.COMMIT): State.COMMITTED,
    (State.ROLLED_BACK, Resolution.ROLLBACK): State.ROLLED_BACK,
    # Parking only stops the automatic checks; the decision is still open and may come late.
    (State.PARKED, Resolution.COMMIT): State.COMMITTED,
    (State.PARKED, Resolution.ROLLBACK): State.ROLLED_BACK,
}

#: Transitions that no answer causes.
MOVES: tuple[Transition, ...] = (
    Transition(None, "prepare", State.PREPARED),
    # A back-check changes counters, not the state.
    Transition(State.PREPARED, "ask", State.PREPARED),
    Transition(State.PREPARED, "park", State.PARKED),
    Transition(State.PARKED, "resume", State.PREPARED),
)

#: All transitions.
TRANSITIONS: tuple[Transition, ...] = MOVES + tuple(
    Transition(source, resolution.value, target)
    for (source, resolution), target in RESOLVES.items()
)
