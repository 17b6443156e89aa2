"""Planning a round: columns follow the same rules as single transactions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.broker.checks.due_plan import (
    DUE_LABELS,
    REASONS,
    DueHeads,
    DuePlan,
    RoundView,
    labels,
    plan_round,
)
from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NamedOrigin
from escrowmq.transaction.rules import DUES, PARK_REASONS, HalfFacts, ParkReason, due

POLICY = CheckPolicy()
NOW_MS = 10**12
SHOP, OTHER = "shop", "other"

halves = st.fixed_dictionaries(
    {
        "state": st.integers(0, 3),
        "age_ms": st.sampled_from([0, POLICY.park_after_ms - 1, POLICY.park_after_ms]),
        "wait_ms": st.sampled_from([-1, 0, 1]),
        "checks_sent": st.sampled_from([0, POLICY.checks_max - 1, POLICY.checks_max]),
        "has_ledger": st.integers(0, 1),
    }
)


@given(st.lists(halves, min_size=1))
def test_columns_get_the_labels_of_single_halves(rows: list[dict[str, int]]) -> None:
    columns = HalfFacts(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
    found = labels(columns, POLICY, DUES, DUE_LABELS).tolist()
    assert [DUE_LABELS[at] for at in found] == [due(HalfFacts(**row), POLICY) for row in rows]


def test_a_half_without_a_matching_rule_has_no_label() -> None:
    columns = HalfFacts(
        state=np.array([0]),
        age_ms=np.array([0]),
        wait_ms=np.array([0]),
        checks_sent=np.array([0]),
        has_ledger=np.array([0]),
    )
    assert labels(columns, POLICY, PARK_REASONS, REASONS).tolist() == [-1]


def planned(rows: list[tuple[str, str, int, int, int]], **view: Any) -> DuePlan:  # noqa: ANN401 - fields of the view
    """Plan (group, ledger, age, wait, checks sent) of each transaction."""
    names = sorted({row[:2] for row in rows})
    heads = np.zeros(
        len(rows),
        dtype=[(name, "<i8") for name in ("half_offset", "state", "next_at_ms", "checks_sent")],
    )
    heads["half_offset"] = np.arange(100, 100 + len(rows))
    heads["next_at_ms"] = [NOW_MS + row[3] for row in rows]
    heads["checks_sent"] = [row[4] for row in rows]
    found = DueHeads(
        heads=heads,
        started_at_ms=np.array([NOW_MS - row[2] for row in rows]),
        numbers=np.array([names.index(row[:2]) for row in rows]),
        seen=list(range(len(names))),
    )
    origins = [
        NamedOrigin(id=number, group=group, ledger=ledger, allowed_ms=60_000)
        for number, (group, ledger) in enumerate(names)
    ]
    values: dict[str, Any] = {
        "policy": POLICY,
        "now_ms": NOW_MS,
        "asks": True,
        "ledgers": frozenset({SHOP}),
        "led": frozenset({SHOP}),
        "has_unnamed_ledger": False,
        **view,
    }
    return plan_round(found, origins, RoundView(**values))


def listed(parts: dict[str, Any]) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in parts.items()}


def test_those_due_the_longest_come_first_in_each_group() -> None:
    rows = [("b", "", 9_000, -1, 0), ("a", "", 9_000, -2, 0), ("b", "", 9_000, -3, 0)]
    assert listed(planned(rows).asks) == {"a": [1], "b": [2, 0]}


def test_a_known_ledger_is_looked_up_and_an_unknown_one_is_asked_about() -> None:
    rows = [("a", SHOP, 9_000, 0, 0), ("a", OTHER, 9_000, 0, 0)]
    plan = planned(rows)
    assert (listed(plan.look_ups), listed(plan.asks)) == ({SHOP: [0]}, {"a": [1]})


def test_while_a_database_is_unnamed_an_unknown_ledger_waits_until_its_time_is_over() -> None:
    late = ("a", OTHER, POLICY.park_after_ms, 0, 0)
    plan = planned([("a", OTHER, 9_000, 0, 0), late], has_unnamed_ledger=True)
    assert (plan.asks, plan.look_ups, plan.parks.tolist()) == ({}, {}, [1])
    assert REASONS[plan.reasons[1]] is ParkReason.PAST_RETENTION


def test_a_ledger_of_the_pipeline_is_left_to_it() -> None:
    plan = planned([("a", SHOP, 9_000, 0, 0)], led=frozenset())
    assert (plan.asks, plan.look_ups, plan.due) == ({}, {}, 1)


def test_beside_a_pipeline_the_broker_neither_asks_nor_parks() -> None:
    exhausted = ("a", "", 9_000, 0, POLICY.checks_max)
    plan = planned([("a", "", 9_000, 0, 0), exhausted, ("a", SHOP, 9_000, 0, 0)], asks=False)
    assert (plan.asks, plan.parks.tolist()) == ({}, [])
    assert listed(plan.look_ups) == {SHOP: [2]}


def test_attempts_of_a_spark_sink_are_left_to_the_pipeline() -> None:
    plan = planned([(f"{GROUP_PREFIX}app", "", POLICY.park_after_ms, 0, 0)])
    assert (plan.asks, plan.parks.tolist(), plan.due) == ({}, [], 0)


def test_exhausted_checks_park() -> None:
    plan = planned([("a", "", 9_000, 0, POLICY.checks_max)])
    assert plan.parks.tolist() == [0]
    assert REASONS[plan.reasons[0]] is ParkReason.EXHAUSTED


def test_nothing_due_is_an_empty_plan() -> None:
    plan = planned([("a", "", 9_000, 1, 0)])
    assert (plan.asks, plan.parks.tolist(), plan.look_ups, plan.due) == ({}, [], {}, 0)
