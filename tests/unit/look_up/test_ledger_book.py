"""How a pipeline probes its ledgers and reports the results to brokers, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up import ledger_book
from escrowmq.look_up.ledger_book import LedgerBook
from escrowmq.look_up.ledger_config import LedgerConfig, scrubbed
from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.settle.reporting import LedgerReporter
from escrowmq.pipeline.settle.round_progress import RoundProgress
from escrowmq.pipeline.settle.settling import Settling
from escrowmq.protocol.native.ledgers import REPORTED_MAX, LedgerReportRow, LedgerRow
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


def probed(**urls: str) -> Ledgers:
    ledgers = Ledgers({name: LedgerConfig(url=url) for name, url in urls.items()})
    ledgers.known()
    return ledgers


def only(book: LedgerBook) -> LedgerReportRow:
    (row,) = book.rows()
    return row


def heard(broker: InProcessBroker, ledgers: Ledgers) -> list[LedgerRow]:
    LedgerReporter(ledgers.book, RoundProgress()).send([broker.broker_address])
    with NativeCalls(broker.broker_address) as calls:
        return calls.call(NativeCode.LIST_LEDGERS).rows


def test_a_broker_hears_which_ledgers_are_reached_and_why_others_are_not(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    uuid = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}").create()
    rows = heard(
        broker,
        probed(shop=f"sqlite:///{tmp_path / 'shop.db'}", gone=f"sqlite:///{tmp_path / 'gone.db'}"),
    )
    gone, shop = rows
    assert (shop.name, shop.uuid, shop.is_reachable, shop.error) == ("shop", uuid, True, "")
    assert shop.succeeded_at_ms is not None
    assert (gone.name, gone.uuid, gone.is_reachable) == ("gone", "", False)
    assert (gone.error, gone.succeeded_at_ms) == ("ledger_unreachable", None)
    assert "unable to open database file" in gone.error_text


def test_a_driver_that_is_not_installed_is_named(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    (row,) = heard(broker, probed(shop="postgresql://shop:secret@127.0.0.1:1/orders"))
    assert (row.name, row.error) == ("shop", "driver_missing")
    assert "psycopg" in row.error_text


def test_a_pipeline_without_ledgers_reports_that_it_has_none(broker: InProcessBroker) -> None:
    assert heard(broker, probed()) == []
    with NativeCalls(broker.broker_address) as calls:
        assert calls.call(NativeCode.LIST_LEDGERS).header.pipelines == 1


def test_two_names_for_one_ledger_are_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    uuid = SqlLedger(url).create()
    rows = probed(one=url, two=url).book.rows()
    assert [(row.name, row.uuid, row.error) for row in rows] == [
        ("one", uuid, "ledger_twice"),
        ("two", uuid, "ledger_twice"),
    ]


def test_a_broker_that_is_away_or_too_old_is_no_failure(broker: InProcessBroker) -> None:
    progress = RoundProgress()
    reporter = LedgerReporter(LedgerBook(), progress)
    reporter.send(["127.0.0.1:1"])
    progress.succeeded([broker.broker_address])
    reporter.send([broker.broker_address, "127.0.0.1:1"])


def test_a_report_between_rounds_asks_the_databases_and_one_beside_a_round_does_not(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    settling = Settling(None, Ledgers({"late": LedgerConfig(url=url)}))  # type: ignore[arg-type]

    def reachable() -> list[bool]:
        settling.report([broker.broker_address])
        with NativeCalls(broker.broker_address) as calls:
            return [row.is_reachable for row in calls.call(NativeCode.LIST_LEDGERS).rows]

    assert reachable() == [False]
    SqlLedger(url).create()
    with settling._asking:
        assert reachable() == [False]
    assert reachable() == [True]


def test_an_error_is_remembered_when_the_ledger_is_back() -> None:
    book = LedgerBook()
    book.note_probe("shop", "u", "ledger_unreachable", "connection refused\n  at port 5432")
    book.note_probe("shop", "u", "", "")
    row = only(book)
    assert (row.is_reachable, row.error) == (True, "ledger_unreachable")
    assert row.error_text == "connection refused at port 5432"
    assert row.succeeded_ago_ms is not None
    assert row.failed_ago_ms is not None


def test_tasks_that_cannot_look_up_outweigh_the_driver_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = LedgerBook()
    book.note_probe("shop", "u", "", "")
    book.note_look_up("u", "driver_missing", "No module named 'psycopg'")
    book.note_look_up("another", "ledger_unreachable", "")
    book.note_probe("shop", "u", "", "")
    assert (only(book).is_reachable, only(book).error) == (False, "driver_missing")
    book.note_look_up("u", "", "")
    assert only(book).is_reachable
    book.note_look_up("u", "driver_missing", "")
    monkeypatch.setattr(ledger_book, "LOOK_UP_COUNTS_S", 0)
    assert only(book).is_reachable


def test_a_database_that_tells_another_uuid_is_told_with_the_old_one() -> None:
    book = LedgerBook()
    for uuid in ("", "old", "new"):
        book.note_probe("shop", uuid, "" if uuid else "ledger_slow", "")
    assert (only(book).uuid, only(book).uuid_before) == ("new", "old")


def test_a_report_has_a_limit_and_the_unreachable_come_first() -> None:
    book = LedgerBook()
    for number in range(REPORTED_MAX):
        book.note_probe(f"a{number}", f"u{number}", "", "")
    book.note_probe("z", "", "e" * 1_000, "x" * 10_000)
    rows = book.rows()
    assert len(rows) == REPORTED_MAX
    assert (rows[0].name, len(rows[0].error), len(rows[0].error_text)) == ("z", 255, 1_024)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("bad url postgresql://u:pa%40ss@h/d", "postgresql://u:pa%40ss@h/d"),
        ("password pa@ss refused", "postgresql://u:pa%40ss@h/d"),
        ("sslpassword=pa@ss is wrong", "postgresql://h/d?sslpassword=pa@ss"),
    ],
)
def test_no_password_is_reported(text: str, url: str) -> None:
    said = scrubbed(text, url)
    assert "pa" not in said.replace("password", "")
    assert "***" in said
