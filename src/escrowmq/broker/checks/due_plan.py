"""Plans a settle round: what each due transaction needs, by the time rules, as columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NamedOrigin
from escrowmq.transaction.rules import (
    DUES,
    DUES_UNANSWERED,
    PARK_REASONS,
    Due,
    HalfFacts,
    LabelT,
    ParkReason,
    Table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """What a round knows besides the transactions."""

    policy: CheckPolicy
    now_ms: int
    #: Whether the broker asks producers, or only looks up some ledgers.
    asks: bool
    #: The ledgers that the broker can look up, and whether a configured database has not said yet
    #: which ledger it has. It may then be any ledger, so transactions of unknown ledgers wait.
    ledgers: Collection[str]
    has_unnamed_ledger: bool
    #: Whether the broker looks up this ledger, and not a pipeline.
    leads: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    """Rows of the heads that need something, those that are due the longest first."""

    asks: Rows
    parks: Rows
    #: By ledger.
    look_ups: dict[str, Rows]
    #: For each head, the index in ``REASONS`` of why it is parked if nothing decides it now; -1 if
    #: it is not.
    reasons: Rows
    #: Heads that are due for anything, except those of Spark sinks.
    due: int


DUE_LABELS = tuple(Due)
REASONS = tuple(ParkReason)
_ASK, _PARK, _LOOK_UP = map(DUE_LABELS.index, (Due.ASK, Due.PARK, Due.LOOK_UP))


def plan_round(
    heads: Rows, started_at_ms: Rows, origins: Sequence[NamedOrigin], numbers: Rows, view: RoundView
) -> DuePlan:
    """Plan a round; ``origins[numbers[at]]`` is the origin of ``heads[at]``."""

    def of_origin(value: Callable[[NamedOrigin], bool]) -> Rows:
        found: Rows = np.array([value(one) for one in origins], dtype=np.bool_)[numbers]
        return found

    def is_known(origin: NamedOrigin) -> bool:
        return bool(origin.ledger) and (view.has_unnamed_ledger or origin.ledger in view.ledgers)

    facts = HalfFacts(
        state=heads["state"],
        age_ms=view.now_ms - started_at_ms,
        wait_ms=heads["next_at_ms"] - view.now_ms,
        checks_sent=heads["checks_sent"],
        has_ledger=of_origin(is_known).astype(np.int8),
    )
    dues = labels(facts, view.policy, DUES, DUE_LABELS)
    is_checked = ~of_origin(lambda one: one.group.startswith(GROUP_PREFIX))
    by_time = np.argsort(heads["next_at_ms"], kind="stable")

    def rows(is_wanted: Rows) -> Rows:
        found: Rows = by_time[(is_wanted & is_checked)[by_time]]
        return found

    is_acted_on = (dues == _ASK) | (dues == _PARK) | (dues == _LOOK_UP)
    return DuePlan(
        asks=rows((dues == _ASK) & view.asks),
        parks=rows((dues == _PARK) & view.asks),
        look_ups={
            ledger: rows((dues == _LOOK_UP) & of_origin(lambda one: one.ledger == ledger))  # noqa: B023 - called here
            for ledger in sorted({one.ledger for one in origins} & set(view.ledgers))
            if view.leads(ledger)
        },
        reasons=_reasons(facts, view.policy, dues),
        due=int(np.count_nonzero(is_acted_on & is_checked)),
    )


def _reasons(facts: HalfFacts, policy: CheckPolicy, dues: Rows) -> Rows:
    """Return why each half is parked, if its ledger gives no outcome; -1 if it is not parked."""
    unanswered = labels(facts, policy, DUES_UNANSWERED, DUE_LABELS)
    is_over = (dues == _PARK) | (unanswered == _PARK)
    return np.where(is_over, labels(facts, policy, PARK_REASONS, REASONS), -1)


def labels(
    half: HalfFacts, policy: CheckPolicy, table: Table[LabelT], names: Sequence[LabelT]
) -> Rows:
    """Return for each half the index in ``names`` of the first rule that holds; -1 if none does."""
    found = np.full(len(half.state), -1, dtype=np.int8)
    # The first rule wins, so it is written last.
    for name, holds in reversed(table):
        found[holds(half, policy)] = names.index(name)
    return found
