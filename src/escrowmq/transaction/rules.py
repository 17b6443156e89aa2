"""The time rules: what an undecided half message is due for, and how long it waits.

Each rule is written once, with operators that Python numbers and Spark Columns share, so the
broker, the test double and the pipeline cannot disagree. A rule therefore has no ``~`` and none of
``and or not if in min max``: on a Column they raise, or mean something else than on a bool.
Functions without an operator (minimum, truncation) are passed in.

Time is an argument: nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

# int and bool in Python, Column in Spark: no type covers both. Truth tables in the tests make up
# for it.
Number: TypeAlias = Any
Truth: TypeAlias = Any


class Due(StrEnum):
    """The action that a half message is due for."""

    NOTHING = "nothing"
    WAIT = "wait"
    ASK = "ask"
    LOOK_UP = "look_up"
    PARK = "park"


class ParkReason(StrEnum):
    """Why the automatic checks of a half message stop."""

    PAST_RETENTION = "past_retention"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # == on Columns would build a Column
class HalfFacts:
    """The facts about a half message that the rules use. None of them may be NULL in Spark."""

    #: Code of its ``State``.
    state: Number
    #: The broker's clock now, minus the time when the broker stored it, or resumed it if it was
    #: parked.
    age_ms: Number
    #: Time until its next check by the broker's clock; due at 0 and below.
    wait_ms: Number
    #: Back-checks that were sent to a live producer.
    checks_sent: Number
    #: 1 if the half message names a ledger that a round may look up, else 0.
    has_ledger: Number


Rule = Callable[[HalfFacts, CheckPolicy], Truth]
LabelT = TypeVar("LabelT", bound=StrEnum)
Table = tuple[tuple[LabelT, Rule], ...]
"""The first row whose rule holds gives the label."""


def is_decided(half: HalfFacts, _policy: CheckPolicy) -> Truth:
    """Its decision is made: committed or rolled back."""
    return (half.state == State.COMMITTED) | (half.state == State.ROLLED_BACK)


def is_parked(half: HalfFacts, _policy: CheckPolicy) -> Truth:
    """The automatic checks have stopped: parked, until an operator resumes or decides it."""
    return half.state == State.PARKED


def is_past_retention(half: HalfFacts, policy: CheckPolicy) -> Truth:
    """Its age has reached `park_after_ms`, whether or not a producer was online."""
    return half.age_ms >= policy.park_after_ms


def is_waiting(half: HalfFacts, _policy: CheckPolicy) -> Truth:
    """Its next check is not due yet."""
    return half.wait_ms > 0


def is_within_retention(half: HalfFacts, policy: CheckPolicy) -> Truth:
    """Its age has not reached `park_after_ms`."""
    return half.age_ms < policy.park_after_ms


def is_for_its_ledger(half: HalfFacts, policy: CheckPolicy) -> Truth:
    """It has a ledger, and its next check is due or its age has reached `park_after_ms`."""
    return (half.has_ledger > 0) & (is_overdue(half, policy) | is_past_retention(half, policy))


def is_exhausted(half: HalfFacts, policy: CheckPolicy) -> Truth:
    """Its producer was sent `checks_max` back-checks."""
    return half.checks_sent >= policy.checks_max


def is_overdue(half: HalfFacts, _policy: CheckPolicy) -> Truth:
    """Its next check is due."""
    return half.wait_ms <= 0


#: Order matters: the first row whose rule holds wins.
DUES: Table[Due] = (
    (Due.NOTHING, is_decided),
    (Due.NOTHING, is_parked),
    # Before every rule that parks: after a long time without rounds, the ledger still decides what
    # it can. Look-ups are not counted, and earlier back-checks do not prevent them.
    (Due.LOOK_UP, is_for_its_ledger),
    # Before any wait, so that an absent producer cannot keep a half message undecided.
    (Due.PARK, is_past_retention),
    (Due.WAIT, is_waiting),
    # After the wait, so that the producer has as long to answer the last check as the others.
    (Due.PARK, is_exhausted),
    (Due.ASK, is_overdue),
)


#: The rules for a half message whose ledger was looked up and gave no outcome: a dead ledger must
#: not keep it undecided forever.
DUES_UNANSWERED: Table[Due] = (
    (Due.PARK, is_past_retention),
    (Due.WAIT, is_within_retention),
)


#: Why a half message is due to be parked, in the order of the rules above.
PARK_REASONS: Table[ParkReason] = (
    (ParkReason.PAST_RETENTION, is_past_retention),
    (ParkReason.EXHAUSTED, is_exhausted),
)


def due(half: HalfFacts, policy: CheckPolicy, dues: Table[Due] = DUES) -> Due:
    """Return what `half` is due for. Python numbers only; Spark has ``label_column``."""
    return label(half, policy, dues)


def label(half: HalfFacts, policy: CheckPolicy, table: Table[LabelT]) -> LabelT:
    """Return the label of the first rule that holds."""
    return next(label for label, holds in table if holds(half, policy))


#: Bits of the highest exponent; a policy allows no more than 255 checks.
_EXPONENT_BITS = 8
_EXPONENT_MAX = 2**_EXPONENT_BITS - 1


def check_wait_ms(
    checks_sent: Number,
    policy: CheckPolicy,
    least: Callable[[Number, Number], Number] = min,
    whole: Callable[[Number], Number] = int,
) -> Number:
    """Return the wait before the next check, once `checks_sent` (1 or more) have been sent.

    It is ``check_interval_ms * check_backoff ** (checks_sent - 1)``, at most
    ``check_interval_max_ms``, truncated to a whole number. `least` and `whole` have other names in
    Spark.
    """
    # Never below 0: the remainder of a negative number differs between Python and Spark.
    exponent = least(-least(1 - checks_sent, 0), _EXPONENT_MAX)
    # pow() may differ in the last bit between two libraries, and truncation turns that into a
    # millisecond. Products are rounded the same everywhere, so the power is made by squaring. The
    # largest, a day times 10.0 ** 255, is still far below the limit of a double.
    wait_ms = float(policy.check_interval_ms)
    factor = float(policy.check_backoff)
    for bit in (2**position for position in range(_EXPONENT_BITS)):
        is_set = (exponent % (2 * bit) - exponent % bit) / bit  # 0.0 or 1.0
        wait_ms = wait_ms * (is_set * factor + (1 - is_set))
        factor = factor * factor
    return whole(least(wait_ms, policy.check_interval_max_ms))
