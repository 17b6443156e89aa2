"""Rows deleted from the lake: the audit compares it with the position that the archive recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.audit.compare import AuditRun, ComparisonResult
from escrowmq.pipeline.audit.compare_lake import compare_lake
from escrowmq.pipeline.audit.findings import ComparedEvidence, FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.pipeline.lake.tables import DATE, MESSAGES, TRANSACTIONS
from escrowmq.pipeline.lake.upkeep import delete_old
from escrowmq.pipeline.views.facts import DETAIL, HALF_OFFSET
from tests.spark.audit_day import Day
from tests.spark.audit_shop import Shop, opened_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 6
#: Topic -> its deleted rows, and the places (queue, offset) that are then missing.
LIES = {
    "whole-topic": ("TRUE", {(0, at) for at in range(ROWS)} | {(1, at) for at in range(ROWS)}),
    "prefix": ("queue_id = 0 AND queue_offset < 2", {(0, 0), (0, 1)}),
    "tail": ("queue_id = 0 AND queue_offset >= 4", {(0, 4), (0, 5)}),
    "one-queue": ("queue_id = 1", {(1, at) for at in range(ROWS)}),
    "in-between": ("queue_id = 0 AND queue_offset = 3", {(0, 3)}),
}
SOUND = "sound"


def fill(shop: Shop, topic: str) -> None:
    """Send this number of messages to each of two queues."""
    day = Day(shop.broker.broker_address, topic=topic)
    name = f"of-{topic}"
    day.hold(name, [day.sent(queue_id=at % 2) for at in range(2 * ROWS)])
    day.commit(name)
    shop.day.heads[name] = day.heads[name]


def compared(spark: SparkSession, shop: Shop) -> ComparisonResult:
    """Compare the lake with the broker."""
    pins = take_pins([shop.broker.broker_address])
    return compare_lake(AuditRun(spark, shop.request(), pins))


def places(outcome: ComparisonResult) -> list[tuple[str, str]]:
    """Return the name of each finding and its place in a queue."""
    return [(row[NAME], row[DETAIL].partition(";")[0]) for row in outcome.found.collect()]


def heads(outcome: ComparisonResult) -> set[tuple[str, int]]:
    """Return the name of each finding and its transaction."""
    return {(row[NAME], row[HALF_OFFSET]) for row in outcome.found.collect()}


@pytest.fixture(scope="module")
def lied(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, str]]]:
    """Yield the findings of one lake with all lies: each name, with its missing place."""
    with opened_shop(spark, tmp_path_factory.mktemp("lake-lies")) as shop:
        for topic in (*LIES, SOUND):
            fill(shop, topic)
        shop.archive()
        for topic, (which, _) in LIES.items():
            shop.lake.open(MESSAGES).delete(f"topic = '{topic}' AND {which}")
        fill(shop, "came-later")
        yield places(compared(spark, shop))


@pytest.mark.parametrize("lie", LIES)
def test_rows_deleted_from_the_lake_are_missed(lied: list[tuple[str, str]], lie: str) -> None:
    missed = {detail for _, detail in lied if detail.startswith(f"{lie}, ")}
    assert missed == {f"{lie}, queue {queue}, offset {at}" for queue, at in LIES[lie][1]}


def test_nothing_else_is_missed(lied: list[tuple[str, str]]) -> None:
    assert {name for name, _ in lied} == {FindingName.LAKE_MESSAGE_MISSING.value}
    assert len(lied) == sum(len(missed) for _, missed in LIES.values())


#: Life lines: the deleted rows, and the transactions whose decisions are then missing.
LIFE_LINES = {
    "all of them": ("TRUE", {"first", "second", "third"}),
    "a prefix": ("log_offset <= {second}", {"first", "second"}),
    "a tail": ("log_offset >= {second}", {"second", "third"}),
}


@pytest.mark.parametrize("lie", LIFE_LINES)
def test_life_lines_deleted_from_the_lake_are_missed(
    spark: SparkSession, tmp_path: Path, lie: str
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        for name in ("first", "second", "third"):
            shop.day.hold(name)
            shop.day.commit(name)
        shop.archive()
        events = shop.lake.open(TRANSACTIONS).to_pyarrow_table().to_pylist()
        second = next(
            one["log_offset"]
            for one in events
            if one["event"] == "committed" and one["head"] == shop.day.heads["second"]
        )
        which, missed = LIFE_LINES[lie]
        shop.lake.open(TRANSACTIONS).delete(which.format(second=second))
        assert heads(compared(spark, shop)) == {
            (FindingName.LAKE_DECISION_MISSING.value, shop.day.heads[name]) for name in missed
        }


def test_a_table_that_is_gone_is_no_proof(spark: SparkSession, tmp_path: Path) -> None:
    with opened_shop(spark, tmp_path) as shop:
        fill(shop, SOUND)
        shop.archive()
        (Path(shop.lake.uri) / MESSAGES.name).rename(tmp_path / "elsewhere")
        with pytest.raises(RequestRefused) as refused:
            compared(spark, shop)
        assert refused.value.code == "lake_missing"


def test_rows_deleted_by_the_lakes_own_retention_are_not_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        fill(shop, "old")
        shop.broker.advance(ms=3 * 86_400_000)
        fill(shop, "new")
        shop.archive()
        days = shop.lake.open(MESSAGES).to_pyarrow_table(columns=[DATE])[DATE].to_pylist()
        assert len(set(days)) == 2
        for table in (MESSAGES, TRANSACTIONS):
            assert delete_old(shop.lake, table, max(days) + timedelta(days=1), 2) > 0
        assert places(compared(spark, shop)) == []
        shop.lake.open(MESSAGES).delete("topic = 'new' AND queue_id = 0 AND queue_offset = 0")
        assert places(compared(spark, shop)) == [
            (FindingName.LAKE_MESSAGE_MISSING.value, "new, queue 0, offset 0")
        ]


def test_the_archive_records_what_an_older_one_has_archived(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        fill(shop, SOUND)
        with monkeypatch.context() as older:
            older.setattr("escrowmq.pipeline.archive.stream.begin_marks", lambda *_: None)
            for stream in ("messages", "events"):
                name = f"escrowmq.pipeline.archive.{stream}.with_marks"
                older.setattr(name, lambda entitled, _: entitled)
            shop.archive()
        assert compared(spark, shop).unproved
        # Without anything new, a run of the archive is enough.
        shop.archive()
        shop.lake.open(MESSAGES).delete("queue_id = 0 AND queue_offset = 5")
        shop.lake.open(TRANSACTIONS).delete()
        outcome = compared(spark, shop)
        assert outcome.unproved == ""
        names = {name for name, _ in heads(outcome)}
        assert names == {
            FindingName.LAKE_MESSAGE_MISSING.value,
            FindingName.LAKE_DECISION_MISSING.value,
        }


def test_a_lake_without_a_recorded_position_is_no_proof_until_the_archive_has_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        fill(shop, SOUND)
        for table in (MESSAGES, TRANSACTIONS):
            shop.lake.open(table)
        report = run_audit(spark, shop.request(business=None))
        assert report.findings == []
        (lake,) = [one for one in report.comparisons if one.compared is ComparedEvidence.LAKE]
        assert lake.not_compared.startswith("the archive has not recorded its position")
        assert report.has_failed
        shop.archive()
        assert compared(spark, shop).unproved == ""
