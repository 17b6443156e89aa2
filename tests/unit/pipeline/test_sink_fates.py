"""How a part at another broker than its home ends."""

from __future__ import annotations

import pytest

from escrowmq.pipeline.sink.deciding import difference, fates
from escrowmq.pipeline.sink.fates import fate, verdict_on_part
from escrowmq.pipeline.sink.written import AttemptPart, SinkBroker, Written
from escrowmq.protocol.native.rows import FoundAttemptRow
from escrowmq.transaction.states import State
from tests.unit.pipeline.several import new_attempt

DAY_MS = 24 * 3_600_000
A, B = SinkBroker("a", "a:1"), SinkBroker("b", "b:1")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("committed", "commit"),
        ("rolled_back", "rollback"),
        ("prepared", None),
        # Parked is not a decision.
        ("parked", None),
        # A state of a later version.
        ("something", None),
    ],
)
@pytest.mark.parametrize("age_ms", [0, DAY_MS, 100 * DAY_MS])
def test_only_what_became_of_it_at_home_counts(
    state: str, expected: str | None, age_ms: int
) -> None:
    assert fate(state) == expected
    assert verdict_on_part(state, age_ms) == expected


def test_every_state_has_a_rule() -> None:
    assert {state.label for state in State} == {"prepared", "committed", "rolled_back", "parked"}


def test_a_part_unknown_to_its_home_is_kept_for_an_operator_after_a_day() -> None:
    assert fate(None) is None
    assert verdict_on_part(None, DAY_MS - 1) is None
    assert verdict_on_part(None, DAY_MS) == "park"


def written(*brokers: SinkBroker) -> Written:
    attempt = new_attempt()
    held_as = attempt.elsewhere("home", 5)
    parts = tuple(AttemptPart(broker, held_as, 70 + at, 2, 9) for at, broker in enumerate(brokers))
    return Written(attempt, 5, 0, 1, parts)


def test_each_broker_is_told_of_its_parts_whose_home_has_decided() -> None:
    states = ["committed", "prepared", "rolled_back", None]
    told = fates(
        [written(A, B), written(A, B), written(B), written(A)],
        [FoundAttemptRow(5, state, None, None) for state in states],
    )
    assert {
        broker.name: [(row.half_offset, row.resolution) for row in rows]
        for broker, rows in told.items()
    } == {
        "a": [(70, "commit")],
        "b": [(71, "commit"), (70, "rollback")],
    }


@pytest.mark.parametrize(
    ("at_broker", "code"),
    [
        (FoundAttemptRow(70, "prepared", 2, 9), None),
        (FoundAttemptRow(70, "prepared", 1, 9), "attempt_differs"),
        (FoundAttemptRow(70, "prepared", 2, 8), "attempt_differs"),
        (FoundAttemptRow(70, "parked", 2, 9), "attempt_not_prepared"),
        (FoundAttemptRow(70, "committed", None, None), "attempt_not_prepared"),
        (FoundAttemptRow(70, "rolled_back", None, None), "attempt_not_prepared"),
        (FoundAttemptRow(70, None, None, None), "attempt_not_prepared"),
    ],
)
def test_a_batch_is_decided_only_if_each_part_is_there_as_reported(
    at_broker: FoundAttemptRow, code: str | None
) -> None:
    refused = difference(written(A).elsewhere[0], at_broker)
    assert (None if refused is None else refused.code) == code
