"""`status`, `txn explain` and `doctor` say what is wrong with a ledger and how to fix it.

The pipeline's own probe of real databases makes the reports. Only Spark is left out.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from escrowmq.cli.admin.ledger_text import (
    _ADVICE,
    NAMED_MAX,
    LedgersTold,
    advice_for,
    ask_ledgers,
    explained_ledger,
)
from escrowmq.cli.admin.status import LEDGERS_SHOWN, ledger_lines
from escrowmq.cli.main import main
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import Ledgers
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.settle.reporting import LedgerReporter
from escrowmq.pipeline.settle.round_progress import RoundProgress
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.ledgers import LedgerRow
from escrowmq.protocol.native.pipeline_headers import AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow
from escrowmq.testing import InProcessBroker

Run = Callable[..., str]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", broker.address])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out + told.err

    return run


class Pipeline:
    """The part of a pipeline that asks ledgers and reports to brokers."""

    def __init__(self, broker: InProcessBroker, **urls: str) -> None:
        self._broker = broker
        self._ledgers = Ledgers({name: LedgerConfig(url=url) for name, url in urls.items()})
        self._reporter = LedgerReporter(self._ledgers.book, RoundProgress())
        self.round()

    def round(self) -> None:
        with NativeCalls(self._broker.broker_address) as calls:
            # This request marks the pipeline as attached.
            calls.call(NativeCode.AWAIT_DUE, AwaitDueHeader())
        self._ledgers.known()
        self._reporter.send([self._broker.broker_address])


def hold(broker: InProcessBroker, ledger: str) -> None:
    """Hold an undecided transaction `t` whose ledger lookup is due."""
    row = SentInRow(
        transaction_id="t",
        topic="paid",
        queue_id=-1,
        body=b"one",
        properties="",
        flag=0,
        sys_flag=0,
        born_at_ms=0,
    )
    header = HoldManyHeader(producer_group="pay", ledger=ledger, allowed_ms=60_000)
    with NativeCalls(broker.address) as calls:
        calls.call(NativeCode.HOLD_MANY, header, [row])
    broker.advance(seconds=7)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_a_ledger_that_is_reached(broker: InProcessBroker, run: Run, url: str) -> None:
    uuid = SqlLedger(url).create()
    hold(broker, uuid)
    Pipeline(broker, shop=url)
    said = run("txn", "explain", "t")
    assert f"Its outcome is in the ledger shop ({uuid}), which was reached" in said
    assert "the next round looks it up" in said
    status = run("status")
    assert "attached, no verdict so far\n" in status
    assert "nothing to settle" not in status
    assert "ledger shop" in status
    assert ", 1 undecided\n" in status
    assert "ok           pipeline's ledger shop: reached" in run("doctor")


def test_a_driver_that_is_not_installed(
    broker: InProcessBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(broker, "u" * 32)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    Pipeline(broker, shop="postgresql://shop:secret@127.0.0.1:1/orders")
    said = run("txn", "explain", "t")
    assert f"It names the ledger {'u' * 32}. No database has reported this UUID so far." in said
    assert "cannot reach ledger shop (last reached never): driver_missing:" in said
    assert 'pip install "escrowmq[postgres]"' in said
    assert "each round tries the ledger again" in said
    assert "next round looks it up" not in said
    status = run("status")
    assert "attached, no verdict so far, 1 undecided WAIT for a ledger" in status
    assert "UNREACHABLE: driver_missing" in status
    assert "1 undecided; no database reported this UUID, it may be shop\n" in status
    assert "secret" not in said + status
    told = run("doctor", code=1)
    assert "problem      pipeline's ledger shop: unreachable: driver_missing" in told
    assert "problem      pipeline: attached, no verdict so far, 1 undecided WAIT" in told
    assert "ledger not configured" not in told
    shown = json.loads(run("status", "-o", "json"))
    assert shown["undecided_without_ledger"] == 1
    assert shown["ledgers"][0]["error"] == "driver_missing"
    explained = json.loads(run("txn", "explain", "t", "-o", "json"))
    assert explained["ledger_reports"][0]["error"] == "driver_missing"


def test_a_database_that_went_away(
    broker: InProcessBroker, run: Run, url: str, tmp_path: Path
) -> None:
    uuid = SqlLedger(url).create()
    hold(broker, uuid)
    pipeline = Pipeline(broker, shop=url)
    (tmp_path / "shop.db").rename(tmp_path / "away.db")
    pipeline.round()
    said = run("txn", "explain", "t")
    assert f"Its outcome is in the ledger shop ({uuid}). It waits for that ledger." in said
    assert "cannot reach ledger shop (last reached " in said
    assert "ms ago, at 20" in said
    assert "ledger_unreachable: unable to open database file" in said
    assert "To do: start the database, or correct the url of [ledger.shop]" in said
    assert "ledger shop" in run("status")
    (tmp_path / "away.db").rename(tmp_path / "shop.db")
    pipeline.round()
    assert "which was reached" in run("txn", "explain", "t")


def test_a_database_with_another_ledger(broker: InProcessBroker, run: Run, url: str) -> None:
    uuid = SqlLedger(url).create()
    hold(broker, "elsewhere")
    Pipeline(broker, shop=url)
    said = run("txn", "explain", "t")
    assert f"No configured ledger has this UUID: shop is {uuid}." in said
    assert "add a section [ledger.NAME]" in said
    assert "Until then the pipeline asks the producers instead." in said
    assert "0 producers of group pay are online" in said
    assert "1 undecided; no reporting pipeline has it in its config" in run("status")
    assert "problem      ledger not configured: 1 undecided" in run("doctor", code=1)


def test_a_ledger_that_was_made_anew(
    broker: InProcessBroker, run: Run, url: str, tmp_path: Path
) -> None:
    uuid = SqlLedger(url).create()
    hold(broker, uuid)
    pipeline = Pipeline(broker, shop=url)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("UPDATE escrowmq_ledger_id SET ledger_uuid = 'another'")
    pipeline.round()
    said = run("txn", "explain", "t")
    assert "The database of ledger shop had this UUID, and now reports another" in said
    assert "set the url of [ledger.shop] to the old database again" in said


def test_a_pipeline_without_any_ledger(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "elsewhere")
    Pipeline(broker)
    said = run("txn", "explain", "t")
    assert "It names the ledger elsewhere. The pipeline has no ledger in its config." in said


def test_without_a_report_nothing_is_claimed(broker: InProcessBroker, run: Run, url: str) -> None:
    uuid = SqlLedger(url).create()
    hold(broker, uuid)
    said = run("txn", "explain", "t")
    assert f"Its outcome is in the ledger {uuid}, which the pipeline looks up." in said
    assert "No pipeline has reported recently which ledgers it reaches." in said
    assert "1 undecided name one; no pipeline has reported recently" in run("status")


def test_a_pipeline_that_is_gone_is_forgotten(broker: InProcessBroker, run: Run, url: str) -> None:
    hold(broker, SqlLedger(url).create())
    Pipeline(broker, shop=url)
    broker.advance(seconds=121)
    assert "AWAY since" in run("status")
    said = run("txn", "explain", "t")
    assert "No pipeline has reported recently" in said
    assert "The pipeline is away" in said


def test_a_parked_transaction_is_explained_by_its_ledger(
    broker: InProcessBroker, run: Run, url: str
) -> None:
    hold(broker, "elsewhere")
    broker.advance(seconds=72 * 3_600 + 1)
    broker.run_checks()
    Pipeline(broker, shop=url)
    said = run("txn", "explain", "t")
    assert "It was parked (past_retention)" in said
    assert "cannot reach ledger shop" in said


def test_a_broker_that_knows_no_reports() -> None:
    class Older:
        def call(self, code: NativeCode) -> None:
            raise RequestRefused("request_unsupported", f"request code {code}")

    assert ask_ledgers(Older()) == LedgersTold()  # type: ignore[arg-type]


def test_long_lists_are_cut() -> None:
    down = LedgerRow(uuid="", name="a", error="ledger_slow")
    many = [msgspec.structs.replace(down, name=f"a{at}") for at in range(50)]
    said = list(explained_ledger("u", LedgersTold(1, many), 0))
    assert len([line for line in said if line.startswith("The pipeline cannot")]) == NAMED_MAX
    assert said[-1].startswith("45 more ledgers cannot be reached")
    lines = ledger_lines(LedgersTold(1, many), 0)
    assert len(lines) == LEDGERS_SHOWN + 1
    assert LedgersTold(1, many).unnamed == "a0, a1, a2, a3, a4, …"
    named = [msgspec.structs.replace(row, uuid=row.name) for row in many]
    assert "and 45 more" in "\n".join(explained_ledger("u", LedgersTold(1, named), 0))


@pytest.mark.parametrize("error", [*_ADVICE, "something_new"])
def test_every_error_comes_with_advice(error: str) -> None:
    advice = advice_for(LedgerRow(uuid="u", name="shop", error=error))
    assert advice
    assert "{" not in advice
