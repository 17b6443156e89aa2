"""An audit finds nothing where nothing is wrong, whatever the broker went through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.message import SentMessage
from escrowmq.pipeline.audit.compare import AuditRun
from escrowmq.pipeline.audit.compare_business import compare_business
from escrowmq.pipeline.audit.findings import ComparedEvidence
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.retention.retention import retain
from escrowmq.transaction.commands import Append
from escrowmq.transaction.policy import HOUR_MS, CheckPolicy
from tests.spark.audit_day import live
from tests.spark.audit_shop import Shop, opened_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.audit.report import AuditReport

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def work(shop: Shop, name: str) -> None:
    """Do some of everything, under names with this prefix."""
    live(shop.day, name)
    shop.book(f"{name}booked")
    shop.book(f"{name}unbooked", decided="rollback", row="rolled_back")
    shop.book(f"{name}to-be-decided", decided="")
    shop.sell(f"{name}sold")
    shop.sell(f"{name}held", decided=False)
    delayed = shop.orders.sent(key=f"{name}delayed", delay_s=3_600)
    shop.sell(f"{name}delayed", messages=0)
    shop.orders.hold(f"{name}delayed", [delayed])
    shop.orders.commit(f"{name}delayed")


@contextmanager
def working(shop: Shop) -> Iterator[list[str]]:
    """Work on in the background; yield the prefixes of what was done."""
    done: list[str] = []
    failed: list[BaseException] = []
    ending = threading.Event()

    def go_on() -> None:
        try:
            while not ending.is_set():
                work(shop, f"meanwhile-{len(done)}-")
                done.append(f"meanwhile-{len(done)}-")
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield done
    finally:
        ending.set()
        thread.join()
    assert failed == []


def all_compared(report: AuditReport) -> bool:
    compared = {one.compared for one in report.comparisons if not one.not_compared}
    # No pipeline runs here, so there are no rounds to compare.
    return compared == set(ComparedEvidence) - {ComparedEvidence.ROUNDS}


def test_a_busy_day_is_sound_while_the_broker_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with opened_shop(spark, tmp_path) as shop:
        work(shop, "early-")
        shop.archive()
        shop.read_up_to("readers", 1)
        with working(shop) as done:
            report = run_audit(spark, shop.request())
        assert report.findings == []
        assert all_compared(report), report.comparisons
        assert done, "nothing went on meanwhile"


def test_the_same_day_is_sound_by_plain_joins(spark: SparkSession, tmp_path: Path) -> None:
    with opened_shop(spark, tmp_path) as shop:
        work(shop, "early-")
        report = run_audit(spark, replace(shop.request(), lake="", is_plain=True))
        assert report.findings == []


def test_data_deleted_by_retention_and_a_janitor_is_reported_and_no_finding(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        work(shop, "old-")
        shop.broker.advance(ms=2 * HOUR_MS)
        shop.archive()
        committed = {"old-booked": LedgerOutcome.COMMITTED}
        swept = SqlLedger(shop.url).sweep(
            lambda ids: Confirmed({one: committed[one] for one in ids if one in committed}, ())
        )
        assert swept == 1
        shop.broker.stop()
        retain_all(tmp_path / "data", shop.broker.clock.now_ms())
        shop.broker.start()
        work(shop, "new-")
        report = run_audit(spark, shop.request())
        assert report.findings == []
        assert all_compared(report), report.comparisons
        notes = {one.compared: one.notes for one in report.comparisons}
        assert "because retention deleted what is older" in notes[ComparedEvidence.RECORDS][0]
        # The lake has the messages that retention deleted.
        assert notes[ComparedEvidence.BUSINESS] == []
        pins = take_pins([shop.broker.broker_address])
        without = compare_business(AuditRun(spark, shop.request(lake=""), pins))
        assert without.found.count() == 0
        assert without.notes[0].startswith("rows without a message are not reported: retention has")


def retain_all(data: Path, now_ms: int) -> None:
    """Let retention delete everything that it may from a store that no broker serves."""
    config = StoreConfig(segment_bytes_max=4_096, retention_bytes=1, durability="os")
    store, _ = open_store(OsDisk(data / "store"), config, CheckPolicy(), HOST)
    # Retention deletes only whole segments.
    for _ in range(2):
        filling = SentMessage(topic="orders", queue_id=0, body=b"x" * 4_096)
        store.execute(Append(messages=(filling,)), now_ms)
        store.sync()
    retain(store, now_ms)
    assert store.log.start > 0
    store.sync()
    store.close()


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_broker_without_anything_is_sound(
    spark: SparkSession, tmp_path: Path, *, is_plain: bool
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        request = replace(shop.request(), lake="", is_plain=is_plain)
        assert run_audit(spark, request).findings == []
