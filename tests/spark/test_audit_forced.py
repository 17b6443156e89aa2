"""Decisions that were forced against a ledger: each is a finding, even after a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.decide_by_hand import decide_by_hand
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.pipeline.audit.compare import AuditRun, compare_records
from escrowmq.pipeline.audit.findings import Breach, ComparedEvidence, FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.pipeline.views.facts import DETAIL, HALF_OFFSET
from escrowmq.protocol.native.operator_headers import DecideByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.policy import HOUR_MS
from tests.spark.audit_shop import Shop, opened_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settle(shop: Shop, name: str, resolution: Resolution, *, force: bool, reason: str) -> None:
    """Settle as ``escrowmq txn commit`` and ``rollback`` do."""
    with NativeCalls(shop.broker.broker_address) as calls:
        decide_by_hand(
            calls,
            {shop.ledger: SqlLedger(shop.url)},
            transaction_id=name,
            resolution=resolution,
            reason=reason,
            by="operator",
            force=force,
        )


def test_a_forced_ghost_commit_is_found_after_a_janitor_sweep(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        shop.book("sound")
        shop.day.hold("ghost", ledger=shop.ledger)
        settle(shop, "ghost", Resolution.COMMIT, force=True, reason="customer called")
        shop.day.hold("several", [shop.day.sent()] * 2, ledger=shop.ledger)
        settle(shop, "several", Resolution.COMMIT, force=True, reason="customer called")
        shop.day.hold("undone", ledger=shop.ledger)
        shop.row("undone")
        settle(shop, "undone", Resolution.ROLLBACK, force=True, reason="customer called")
        shop.day.hold("agreed", ledger=shop.ledger)
        shop.row("agreed")
        settle(shop, "agreed", Resolution.COMMIT, force=False, reason="I was forced; the ledger")
        shop.broker.advance(ms=2 * HOUR_MS)
        swept = SqlLedger(shop.url).sweep(
            lambda ids: Confirmed(dict.fromkeys(ids, LedgerOutcome.COMMITTED), ())
        )
        assert swept == 3
        request = replace(shop.request(), lake="", business=None)
        report = run_audit(spark, request)
        assert [one.name for one in report.findings] == [FindingName.DECIDED_BY_FORCE]
        (listed,) = report.findings
        assert (listed.kind, listed.compared) == (Breach.FORCED, ComparedEvidence.RECORDS)
        assert [case.half_offset for case in listed.cases] == [
            shop.day.heads["ghost"],
            shop.day.heads["several"],
            shop.day.heads["undone"],
        ]
        assert listed.cases[2].detail.startswith("rolled_back by operator by hand: ")
        ghost = listed.cases[0]
        assert ghost.transaction_id == "ghost"
        assert ghost.producer_group == "pay"
        assert "operator by hand: customer called (forced; the ledger said " in ghost.detail
        assert not report.is_clean


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_decision_that_an_older_program_forced_is_found_by_its_text(
    spark: SparkSession, tmp_path: Path, *, is_plain: bool
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        for name in ("older", "by-hand"):
            shop.day.hold(name, ledger=shop.ledger)
        reasons = {"older": "seen (forced; the ledger said absent)", "by-hand": "(forced) to"}
        with NativeCalls(shop.broker.broker_address) as calls:
            for name, reason in reasons.items():
                header = DecideByHandHeader(
                    half_offset=shop.day.heads[name], by="ops", resolution="commit", reason=reason
                )
                calls.call(NativeCode.DECIDE_BY_HAND, header)
        pins = take_pins([shop.broker.broker_address])
        request = replace(shop.request(), is_plain=is_plain)
        rows = compare_records(AuditRun(spark, request, pins)).found.collect()
        assert [(row[NAME], row[HALF_OFFSET]) for row in rows] == [
            (FindingName.DECIDED_BY_FORCE.value, shop.day.heads["older"])
        ]
        assert "the ledger said absent" in rows[0][DETAIL]
