"""Which attempts of the sink count as orphans, and by which evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from escrowmq.model.sink_attempt import PLAIN_QUERY, SinkAttempt, SinkRun
from escrowmq.pipeline.sink.orphans import EVIDENCE, orphaned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * 3_600_000
REST = ["transaction_id", "producer_group", "age_ms"]
ATTEMPTS = (
    "broker string, half_offset bigint, transaction_id string, producer_group string, age_ms bigint"
)
BATCHES = "broker string, app_id string, query_id string, batch_number bigint, batch_name string"
QUERY = "0b9a6a52-5f6f-4b0e-8f0c-2f0c5c0d9d11"
OTHER_QUERY = "0b9a6a52-5f6f-4b0e-8f0c-000000000000"
UUID = "7f8b1c1e1f5a4c5e9a0d2b3c4d5e6f70"


def run(number: int, *, app_id: str = "app", query_id: str = QUERY) -> SinkRun:
    """Return the nth run of a query."""
    return SinkRun(app_id=app_id, query_id=query_id, run=f"{number:08x}", opened_at=4_096 * number)


def held(
    of: SinkRun, batch: int | str, *, age_ms: int = 1, broker: str = "a:1"
) -> tuple[str, str, str, int]:
    attempt = SinkAttempt(run=of, batch=batch, partition=0, attempt=UUID)
    return broker, attempt.transaction_id, of.producer_group, age_ms


def decided(
    batch: int | str, *, app_id: str = "app", query_id: str = QUERY, broker: str = "a:1"
) -> tuple[str, str, str, int | None, str | None]:
    is_name = isinstance(batch, str)
    number, name = (None, batch) if is_name else (batch, None)
    return broker, app_id, query_id, number, name  # type: ignore[return-value]  # one of each kind


Plain = PLAIN_QUERY
CASES = [
    # Batch numbers.
    (held(run(1), 5), [decided(5)], "batch_decided"),
    (held(run(1), 4), [decided(5)], "batch_decided"),
    (held(run(1), 6), [decided(5)], None),
    (held(run(1), 6), [], None),
    # Compared as numbers, not as strings.
    (held(run(1), 10), [decided(9)], None),
    # Another query got that far, so this one's batch would be refused.
    (held(run(1), 5), [decided(5, query_id=OTHER_QUERY), decided(2)], "batch_decided"),
    # Decisions of others.
    (held(run(1), 5), [decided(5, app_id="other"), decided(5, broker="b:1"), decided("5")], None),
    # Batch names.
    (held(run(1, query_id=Plain), "x"), [decided("x", query_id=Plain)], "batch_decided"),
    (held(run(1, query_id=Plain), "x"), [decided("y", query_id=Plain)], None),
    (held(run(1, query_id=Plain), "5"), [decided(9)], None),
    # The age of any transaction in such a group.
    (held(run(1), 6, age_ms=DAY_MS), [decided(5)], "too_old"),
    (held(run(1), 6, age_ms=DAY_MS - 1), [decided(5)], None),
    (("a:1", "somebody else's id", "%SINK%app", DAY_MS), [decided(5)], "too_old"),
    (("a:1", "somebody else's id", "%SINK%app", 1), [decided(5)], None),
]


def evidence(
    spark: SparkSession,
    attempts: list[tuple[str, str, str, int]],
    batches: list[tuple[str, str, str, int | None, str | None]],
) -> dict[int, str]:
    rows = [(one[0], number, *one[1:]) for number, one in enumerate(attempts)]
    found = orphaned(spark.createDataFrame(rows, ATTEMPTS), spark.createDataFrame(batches, BATCHES))
    assert found.columns == ["broker", "half_offset", *REST, EVIDENCE]
    return {row["half_offset"]: row[EVIDENCE] for row in found.collect()}


def test_an_attempt_is_given_up_by_evidence_only(spark: SparkSession) -> None:
    """All cases run in one job: each has its own app id and broker."""
    attempts: list[tuple[str, str, str, int]] = []
    batches: list[tuple[str, str, str, int | None, str | None]] = []
    expected: dict[int, str] = {}
    for number, (attempt, known, outcome) in enumerate(CASES):
        attempts.append((f"{number}{attempt[0]}", *attempt[1:]))
        batches.extend((f"{number}{batch[0]}", *batch[1:]) for batch in known)
        if outcome is not None:
            expected[number] = outcome
    assert evidence(spark, attempts, batches) == expected


@pytest.mark.parametrize("query_id", [QUERY, PLAIN_QUERY])
def test_a_later_run_shows_that_the_earlier_ones_are_dead(
    spark: SparkSession, query_id: str
) -> None:
    batch = 5 if query_id == QUERY else "x"
    attempts = [
        held(run(1, query_id=query_id), batch),
        held(run(3, query_id=query_id), batch),
        held(run(2, query_id=query_id), batch),
        held(run(3, query_id=query_id), batch),
        # Another app, broker, query or batch is no evidence.
        held(run(1, query_id=query_id, app_id="other"), batch),
        held(run(1, query_id=query_id), batch, broker="b:1"),
        held(run(1, query_id=OTHER_QUERY), 5),
    ]
    if query_id == PLAIN_QUERY:
        attempts.append(held(run(1, query_id=query_id), "y"))
    assert evidence(spark, attempts, []) == {0: "newer_run", 2: "newer_run"}


def test_later_batches_of_one_run_are_no_later_run(spark: SparkSession) -> None:
    """Spark may make the writer at any time: its position may be the run's or the batch's."""
    early = run(1)
    late = SinkRun(
        app_id=early.app_id,
        query_id=early.query_id,
        run=early.run,
        opened_at=early.opened_at + 60_000,
    )
    assert evidence(spark, [held(early, 5), held(late, 5)], []) == {}


def test_a_time_in_an_older_name_makes_no_run_earlier_or_later(spark: SparkSession) -> None:
    """A driver's clock may be set back, and it is not comparable with a position in a log."""

    def by_clock(of: SinkRun, at_ms: int) -> tuple[str, str, str, int]:
        broker, transaction_id, group, age_ms = held(of, 5)
        return broker, transaction_id.replace(f"/L{of.opened_at}/", f"/{at_ms}/"), group, age_ms

    now_ms = 1_790_000_000_000
    attempts = [by_clock(run(1), now_ms), by_clock(run(2), now_ms + 1), held(run(3), 5)]
    assert evidence(spark, attempts, []) == {}
    assert evidence(spark, [*attempts, held(run(4), 5)], []) == {2: "newer_run"}
