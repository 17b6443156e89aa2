"""Plans a settle round: what each due transaction needs, by the time rules, as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.protocol.native.answer_columns import compact
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
    #: UUIDs of the ledgers that the broker can look up, and of those that it now looks up itself.
    ledgers: frozenset[str]
    led: frozenset[str]
    #: Whether a configured database has not said yet which ledger it has. It may be any ledger, so
    #: transactions of unknown ledgers wait.
    has_unnamed_ledger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHeads:
    """Due transactions, in columns."""

    heads: Rows
    #: When each transaction was stored or, if later, resumed: its age counts from there.
    started_at_ms: Rows
    #: ``seen[numbers[at]]`` is the number of the origin of ``heads[at]``.
    numbers: Rows
    seen: list[int]

    @classmethod
    def joined(cls, pages: Sequence[tuple[Rows, Rows]]) -> DueHeads:
        """Join pages of heads and of the times from which their ages count."""
        heads = np.concatenate([one for one, _ in pages])
        numbers, seen = compact(heads["origin"])
        started_at_ms = np.concatenate([one for _, one in pages])
        return cls(heads=heads, started_at_ms=started_at_ms, numbers=numbers, seen=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    """Rows of the heads that need something, those that are due the longest first."""

    half_offsets: Rows
    #: By producer group, the group whose check is due the longest first.
    asks: dict[str, Rows]
    parks: Rows
    #: By UUID of the ledger, the ledger with the transaction due the longest first.
    look_ups: dict[str, Rows]
    #: For each head, the index in ``REASONS`` of why it is parked if nothing decides it now; -1 if
    #: it is not.
    reasons: Rows
    #: Number of heads that are due to be asked about, looked up or parked; Spark sinks' never are.
    due: int

    def without(self, rows: Rows, half_offsets: list[int]) -> Rows:
        """Return the rows whose heads are none of these."""
        if not half_offsets:
            return rows
        found: Rows = rows[~np.isin(self.half_offsets[rows], half_offsets)]
        return found


DUE_LABELS = tuple(Due)
REASONS = tuple(ParkReason)
_ASK, _PARK, _LOOK_UP = map(DUE_LABELS.index, (Due.ASK, Due.PARK, Due.LOOK_UP))


def plan_round(due: DueHeads, origins: Sequence[NamedOrigin], view: RoundView) -> DuePlan:
    """Plan a round; ``origins`` are those of ``due.seen``."""
    heads = due.heads

    def of_origin(value: Callable[[NamedOrigin], bool]) -> Rows:
        found: Rows = np.array([value(one) for one in origins], dtype=np.bool_)[due.numbers]
        return found

    def is_known(origin: NamedOrigin) -> bool:
        return bool(origin.ledger) and (view.has_unnamed_ledger or origin.ledger in view.ledgers)

    facts = HalfFacts(
        state=heads["state"],
        age_ms=view.now_ms - due.started_at_ms,
        wait_ms=heads["next_at_ms"] - view.now_ms,
        checks_sent=heads["checks_sent"],
        has_ledger=of_origin(is_known).astype(np.int8),
    )
    dues = labels(facts, view.policy, DUES, DUE_LABELS)
    reasons = _reasons(facts, view.policy, dues)
    # Time rules do not apply to attempts of a Spark sink.
    dues[of_origin(lambda one: one.group.startswith(GROUP_PREFIX))] = DUE_LABELS.index(Due.WAIT)
    # No configured database has said that it has this ledger, so the round cannot look it up. It
    # can only park the transaction.
    is_lost = (dues == _LOOK_UP) & of_origin(lambda one: one.ledger not in view.ledgers)
    is_parked = (dues == _PARK) | (is_lost & (reasons >= 0))
    is_led = of_origin(lambda one: one.ledger in view.led)
    by_time = np.argsort(heads["next_at_ms"], kind="stable")

    def rows(is_wanted: Rows) -> Rows:
        found: Rows = by_time[is_wanted[by_time]]
        return found

    def split(found: Rows, name: Callable[[NamedOrigin], str]) -> dict[str, Rows]:
        return _split(found, due.numbers[found], [name(one) for one in origins])

    is_acted_on = (dues == _ASK) | (dues == _PARK) | (dues == _LOOK_UP)
    return DuePlan(
        half_offsets=heads["half_offset"],
        asks=split(rows((dues == _ASK) & view.asks), lambda one: one.group),
        parks=rows(is_parked & view.asks),
        look_ups=split(rows((dues == _LOOK_UP) & is_led), lambda one: one.ledger),
        reasons=reasons,
        due=int(np.count_nonzero(is_acted_on)),
    )


def _split(rows: Rows, numbers: Rows, names: list[str]) -> dict[str, Rows]:
    """Split rows by name: ``names[numbers[at]]`` is that of ``rows[at]``.

    Each part keeps the order of the rows, and the parts are in the order of their first rows.
    """
    if not len(rows):
        return {}
    distinct = sorted(set(names))
    places = {name: at for at, name in enumerate(distinct)}
    codes = np.array([places[name] for name in names])[numbers]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order])) + 1
    parts = sorted(np.split(order, starts), key=lambda part: int(part[0]))
    return {distinct[codes[part[0]]]: rows[part] for part in parts}


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
