"""Ledger reports: bounded, from any release, and dropped when their pipeline is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.native import ledgers
from escrowmq.broker.state.ledger_reports import PIPELINES_MAX, VALID_MS_MAX, LedgerReports
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.frames import encode_call, read_answer
from escrowmq.protocol.native.ledgers import (
    REPORTED_MAX,
    LedgerReportRow,
    LedgerRow,
    ReportLedgersHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm, decode_rows
from escrowmq.testing import ManualClock
from tests.unit.broker.native_peer import ask, hold
from tests.unit.broker.test_http import get
from tests.unit.broker.wire import T0, Peer, serving

REACHED = LedgerReportRow(name="shop", uuid="u1", is_reachable=True, succeeded_ago_ms=5)
DOWN = LedgerReportRow(
    name="shop", uuid="u1", error="ledger_unreachable", error_text="no", failed_ago_ms=5
)
NEVER = LedgerReportRow(
    name="shop", error="driver_missing", error_text="No module", failed_ago_ms=1
)


def put(reports: LedgerReports, *rows: LedgerReportRow, by: str = "p", now_ms: int = 0) -> None:
    reports.put(by, rows, now_ms=now_ms, valid_for_ms=1_000)


async def report(peer: Peer, *rows: LedgerReportRow, **fields: Any) -> None:  # noqa: ANN401
    header = ReportLedgersHeader(**{"pipeline": "p", **fields})
    await ask(peer, NativeCode.REPORT_LEDGERS, header, rows)


async def listed(peer: Peer) -> list[LedgerRow]:
    return (await ask(peer, NativeCode.LIST_LEDGERS)).rows


# Reports that the broker keeps.


def test_a_report_takes_the_place_of_the_last_one_and_ends_with_its_time() -> None:
    reports = LedgerReports()
    put(reports, REACHED)
    assert reports.reached(999, {"p"}) == {"u1"}
    put(reports, DOWN, now_ms=900)
    assert reports.reached(999, {"p"}) == frozenset()
    (facts,) = reports.ledgers(1_899)
    assert (facts.error, facts.failed_at_ms, facts.succeeded_at_ms) == (
        "ledger_unreachable",
        895,
        None,
    )
    assert reports.ledgers(1_900) == []


def test_a_report_of_no_time_withdraws_the_last_one() -> None:
    reports = LedgerReports()
    put(reports, REACHED)
    reports.put("p", [REACHED], now_ms=1, valid_for_ms=0)
    assert reports.current(1) == []


def test_no_report_counts_for_ever() -> None:
    reports = LedgerReports()
    reports.put("p", [REACHED], now_ms=0, valid_for_ms=2**31 - 1)
    assert reports.current(VALID_MS_MAX - 1)
    assert not reports.current(VALID_MS_MAX)


def test_the_pipelines_that_are_kept_are_limited() -> None:
    reports = LedgerReports()
    for number in range(PIPELINES_MAX + 1):
        put(reports, REACHED, by=f"p{number}")
    kept = [report.pipeline for report in reports.current(0)]
    assert kept == [f"p{number}" for number in range(1, PIPELINES_MAX + 1)]


def test_the_report_of_a_restarted_pipeline_replaces_its_earlier_one() -> None:
    reports = LedgerReports()
    put(reports, NEVER, by="host/1")
    put(reports, REACHED, by="host/2")
    assert [facts.uuid for facts in reports.ledgers(0)] == ["u1"]
    put(reports, NEVER, by="host/3")
    assert [facts.error for facts in reports.ledgers(0)] == ["driver_missing"]


def test_two_pipelines_may_use_one_name_for_two_ledgers() -> None:
    reports = LedgerReports()
    put(reports, REACHED, by="a")
    put(reports, msgspec.structs.replace(DOWN, uuid="u2"), by="b")
    assert sorted(facts.uuid for facts in reports.ledgers(0)) == ["u1", "u2"]
    assert reports.reached(0, {"a", "b"}) == {"u1"}
    assert reports.reached(0, {"b"}) == frozenset()


# Over the wire.


async def test_a_ledger_is_listed_with_what_waits_for_it(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t1", ledger="u1")
        await hold(peer, "t2", ledger="u2")
        await hold(peer, "t3")
        # Without a report, the broker cannot tell whether a ledger is missing.
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.pipelines_reporting, told.undecided_without_ledger) == (0, 0)
        await report(peer, DOWN, round_ended_ago_ms=1_000)
        assert await listed(peer) == [
            LedgerRow(
                uuid="u1",
                name="shop",
                pipeline="p",
                error="ledger_unreachable",
                error_text="no",
                reported_at_ms=T0,
                failed_at_ms=T0 - 5,
                undecided=1,
            ),
            LedgerRow(uuid="u2", undecided=1),
        ]
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.pipelines_reporting, told.ledgers_unreachable) == (1, 1)
        assert told.undecided_without_ledger == 2
        await report(peer, REACHED)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.ledgers_unreachable, told.undecided_without_ledger) == (0, 1)
        clock.advance(seconds=121)
        assert [(row.uuid, row.name) for row in await listed(peer)] == [("u1", ""), ("u2", "")]
        assert (await ask(peer, NativeCode.LIST_LEDGERS)).header.pipelines == 0


async def test_ledgers_that_only_transactions_name_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "UNREPORTED_MAX", 2)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(4):
            await hold(peer, f"t{number}", ledger=f"u{number}")
        await report(peer)
        answer = await ask(peer, NativeCode.LIST_LEDGERS)
        assert (len(answer.rows), answer.header.left_out) == (2, 2)
        assert (await ask(peer, NativeCode.STATUS)).header.undecided_without_ledger == 4


async def test_the_status_page_has_the_ledgers(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"http_port": 0}) as server:
        peer = await Peer.to(server.broker_address)
        await report(peer, NEVER)
        _, page = await get(server, "/status")
        (ledger,) = json.loads(page)["ledgers"]
        assert (ledger["name"], ledger["uuid"], ledger["error"]) == ("shop", "", "driver_missing")


async def test_a_report_is_limited_in_rows_and_in_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match="too_many_rows"):
            await report(peer, *[REACHED] * (REPORTED_MAX + 1))
        await report(peer, msgspec.structs.replace(NEVER, error_text="x" * 100_000))
        (row,) = await listed(peer)
        assert row.error_text == "x" * SHOWN_CHARS_MAX


async def test_reports_of_other_releases_are_understood(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        call = encode_call(
            NativeCode.REPORT_LEDGERS, 7, ReportLedgersHeader(pipeline="p"), [REACHED, REACHED]
        )
        plain = msgspec.msgpack.encode([REACHED, REACHED])
        older, newer = ["shop"], [*msgspec.to_builtins(REACHED), "a later column", 3]
        other = msgspec.msgpack.encode([older, newer])
        body = call.replace(plain, other)
        size = len(body) - 4
        peer.write(size.to_bytes(4, "big") + body[4:])
        answer = await peer.until(lambda one: one.is_response and one.opaque == 7)
        read_answer(NativeCode.REPORT_LEDGERS, answer)
        assert [(row.name, row.uuid) for row in await listed(peer)] == [("shop", "u1")]


def test_lists_of_other_releases_are_understood() -> None:
    older, newer = ["u1", "shop"], [*msgspec.to_builtins(LedgerRow(uuid="u2")), "later"]
    body = msgspec.msgpack.encode([older, newer])
    rows = decode_rows(RowForm.MSGPACK, LedgerRow, 1, body, rows_max=2)
    assert rows == [LedgerRow(uuid="u1", name="shop"), LedgerRow(uuid="u2")]
