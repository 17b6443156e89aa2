"""Wrong data planted outside the broker: in the lake, a ledger, a user's table and an offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.pipeline.audit.findings import Breach, ComparedEvidence, FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.lake.tables import MESSAGES, TRANSACTIONS, LakeTable
from tests.spark.audit_shop import Shop, opened_shop
from tests.unit.pipeline.lake_rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.audit.report import AuditReport, Case

MINUTE_MS = 60_000

#: Planted error -> the finding, its kind, and the transaction that the audit must report.
PLANTED = {
    "the lake lost a message": (FindingName.LAKE_MESSAGE_MISSING, Breach.LOST, "lake-lost"),
    "the lake has a message twice": (
        FindingName.LAKE_MESSAGE_DOUBLED,
        Breach.DOUBLED,
        "lake-twice",
    ),
    "the lake has a message that never was": (
        FindingName.LAKE_MESSAGE_UNKNOWN,
        Breach.PHANTOM,
        "queue 0, offset 1000",
    ),
    "the lake lost a decision": (FindingName.LAKE_DECISION_MISSING, Breach.LOST, "no-event"),
    "the lake has a decision twice": (
        FindingName.LAKE_DECISION_DOUBLED,
        Breach.DOUBLED,
        "two-events",
    ),
    "the lake has a decision that nobody made": (
        FindingName.LAKE_DECISION_UNKNOWN,
        Breach.PHANTOM,
        "undecided",
    ),
    "the lake has the opposite decision": (
        FindingName.LAKE_CONTRADICTS,
        Breach.CONTRADICTORY,
        "other-event",
    ),
    "the ledger says the opposite": (
        FindingName.LEDGER_CONTRADICTS,
        Breach.CONTRADICTORY,
        "ledger-contradicts",
    ),
    "the ledger lost a row": (FindingName.LEDGER_ROW_MISSING, Breach.PHANTOM, "ledger-without-row"),
    "the broker lost a transaction that the ledger has": (
        FindingName.LEDGER_ROW_UNKNOWN,
        Breach.LOST,
        "ledger-only",
    ),
    "an order has no message": (
        FindingName.BUSINESS_ROW_WITHOUT_MESSAGE,
        Breach.LOST,
        "orders.id = unsent",
    ),
    "an order has two messages": (
        FindingName.BUSINESS_ROW_WITH_SEVERAL,
        Breach.DOUBLED,
        "orders.id = sent-twice",
    ),
    "a message has no order": (
        FindingName.MESSAGE_WITHOUT_BUSINESS_ROW,
        Breach.PHANTOM,
        "its key is made-up",
    ),
    "a group has read what never was": (
        FindingName.OFFSET_BEYOND_END,
        Breach.CONTRADICTORY,
        "group ahead",
    ),
    "a group does not go on": (FindingName.CONSUMER_STUCK, Breach.STUCK, "group asleep"),
}


@pytest.fixture(scope="module")
def lied(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, AuditReport]]:
    """Yield the report about a shop with all lies planted in it."""
    with opened_shop(spark, tmp_path_factory.mktemp("shop")) as shop:
        _live(shop)
        shop.archive()
        _change_lake(shop)
        yield shop, run_audit(spark, shop.request(consumer_stuck_ms=15 * MINUTE_MS))


def _live(shop: Shop) -> None:
    for name in ("sound", "lake-lost", "lake-twice", "no-event", "two-events", "other-event"):
        shop.day.hold(name)
        shop.day.commit(name)
    shop.day.hold("undecided")
    shop.book("ledger-a-sound")
    shop.book("ledger-contradicts", row="rolled_back")
    shop.book("ledger-rolled-back", decided="rollback", row="rolled_back")
    shop.row("ledger-only")
    shop.sell("sound")
    shop.sell("unsent", messages=0)
    shop.sell("sent-twice", messages=2)
    shop.sell("made-up", rows=0)
    shop.plant_offset("ahead", 500)
    shop.read_up_to("asleep", 1)
    shop.broker.advance(ms=20 * MINUTE_MS)
    shop.book("ledger-without-row", row="")
    shop.book("ledger-z-sound")
    # Its row is in the table, and its message is undecided.
    shop.sell("held", decided=False)
    shop.read_up_to("awake", 4)


def _change_lake(shop: Shop) -> None:
    heads = shop.day.heads
    lake = shop.lake

    def again(table: LakeTable, change: dict[str, object], **where: object) -> None:
        """Add a row again, with a change."""
        rows: list[dict[str, Any]] = lake.open(table).to_pyarrow_table().to_pylist()
        row = next(row for row in rows if all(row[name] == where[name] for name in where))
        row.pop("date")
        lake.append(table, rows_of(table, row | change), lambda _: ())

    again(MESSAGES, {"queue_offset": 1_000}, transaction_id="sound")
    again(MESSAGES, {}, transaction_id="lake-twice")
    lake.open(MESSAGES).delete("transaction_id = 'lake-lost'")
    ended = {"event": "committed"}
    again(TRANSACTIONS, {}, **ended, head=heads["two-events"])
    again(TRANSACTIONS, {"head": heads["undecided"]}, **ended, head=heads["sound"])
    again(TRANSACTIONS, {"event": "rolled_back"}, **ended, head=heads["other-event"])
    for name in ("no-event", "other-event"):
        lake.open(TRANSACTIONS).delete(f"event = 'committed' AND head = {heads[name]}")


def _names(case: Case, what: str) -> bool:
    return case.transaction_id == what or what in case.detail


@pytest.mark.parametrize("planted", PLANTED)
def test_each_lie_is_found_with_its_kind_and_what_it_is_about(
    lied: tuple[Shop, AuditReport], planted: str
) -> None:
    _, report = lied
    finding, kind, what = PLANTED[planted]
    (found,) = [one for one in report.findings if one.name is finding]
    assert (found.kind, found.total) == (kind, 1)
    assert _names(found.cases[0], what), found.cases


def test_nothing_else_is_found(lied: tuple[Shop, AuditReport]) -> None:
    _, report = lied
    assert {one.name for one in report.findings} == {finding for finding, _, _ in PLANTED.values()}


def test_everything_was_compared(lied: tuple[Shop, AuditReport]) -> None:
    _, report = lied
    # No pipeline runs here, so there are no rounds to compare.
    everything = set(ComparedEvidence) - {ComparedEvidence.ROUNDS}
    assert {one.compared for one in report.comparisons} == everything
    assert [one for one in report.comparisons if one.not_compared] == []
    assert not report.has_failed


def test_it_is_told_what_was_compared(lied: tuple[Shop, AuditReport]) -> None:
    shop, report = lied
    by_name = {one.compared: one for one in report.comparisons}
    assert by_name[ComparedEvidence.BUSINESS].counts == {"rows": 4, "messages": 4}
    assert by_name[ComparedEvidence.BUSINESS].which == "orders"
    assert by_name[ComparedEvidence.LEDGER].counts == {"ledgers": 1, "rows": 5, "transactions": 5}
    assert by_name[ComparedEvidence.LEDGER].which == "shop"
    (swept,) = by_name[ComparedEvidence.LEDGER].notes
    assert swept.startswith(f"{shop.ledger}: 1 committed transactions no longer have a row")
    assert by_name[ComparedEvidence.CONSUMERS].counts == {"groups": 3, "queues": 3}
