"""A decision by hand uses the ledger and its fence, as a back-check does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import HoldManyHeader, ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow
from escrowmq.testing import InProcessBroker

Run = Callable[..., str]
COMMITTED, ROLLED_BACK = 1, 2


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Create a database with a ledger, and a config that names it and one that is down."""
    path = tmp_path / "shop.db"
    SqlLedger(f"sqlite:///{path}").create()
    (tmp_path / "escrowmq.toml").write_text(
        f'[ledger.shop]\nurl = "sqlite:///{path}"\n'
        f'[ledger.gone]\nurl = "sqlite:///{tmp_path}/gone.db"\n'
    )
    return path


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(["txn", *arguments, "--broker", broker.address, "--reason", "asked the customer"])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out if code == 0 else told.err

    return run


def hold(broker: InProcessBroker, path: Path, *ids: str) -> None:
    rows = [
        SentInRow(
            transaction_id=one,
            topic="paid",
            queue_id=0,
            body=b"",
            properties="",
            flag=0,
            sys_flag=0,
            born_at_ms=1,
        )
        for one in ids
    ]
    ledger = SqlLedger(f"sqlite:///{path}").uuid()
    header = HoldManyHeader(producer_group="pay", ledger=ledger, allowed_ms=60_000)
    with NativeCalls(broker.broker_address) as calls:
        calls.call(NativeCode.HOLD_MANY, header, rows)


def states(broker: InProcessBroker) -> dict[str, int]:
    wanted = ListTransactionsHeader(states="prepared,committed,rolled_back", with_ids=True)
    with NativeCalls(broker.broker_address) as calls:
        return {
            row.transaction_id: row.state
            for row in calls.rows(NativeCode.LIST_TRANSACTIONS, wanted)
        }


def outcomes(path: Path, *new: tuple[str, str]) -> dict[str, str]:
    """Add rows to the ledger, and return its outcomes by transaction."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, outcome in new:
            connection.execute(
                "INSERT INTO escrowmq_ledger VALUES (?, 'pay', ?, 1)", (key, outcome)
            )
        return dict(connection.execute("SELECT transaction_id, outcome FROM escrowmq_ledger"))


def test_a_decision_is_what_the_ledger_says(broker: InProcessBroker, run: Run, path: Path) -> None:
    hold(broker, path, "there", "absent")
    outcomes(path, ("there", "committed"))
    config = ("--config", str(path.with_name("escrowmq.toml")))
    assert "says='committed'" in run("rollback", "there", *config, code=2)
    assert "says='absent'" in run("commit", "absent", *config, code=2)
    # The sender may still commit, so nothing is fenced before the deadline.
    assert "says='absent'" in run("rollback", "absent", *config, code=2)
    assert (states(broker), outcomes(path)) == ({"there": 0, "absent": 0}, {"there": "committed"})
    broker.advance(seconds=61)
    assert "committed by" in run("commit", "there", *config)
    assert "rolled_back by" in run("rollback", "absent", *config)
    assert states(broker) == {"there": COMMITTED, "absent": ROLLED_BACK}
    assert outcomes(path) == {"there": "committed", "absent": "rolled_back"}


def test_a_ledger_that_cannot_be_read_decides_nothing_unless_it_is_forced(
    broker: InProcessBroker, run: Run, path: Path
) -> None:
    hold(broker, path, "there")
    assert "ledger_not_given" in run("commit", "there", code=2)
    assert states(broker) == {"there": 0}
    forced = run("commit", "there", "--force")
    assert "asked the customer (forced; the ledger said not_given)" in forced
    assert states(broker) == {"there": COMMITTED}


def test_a_rollback_that_is_forced_is_fenced_before_its_deadline(
    broker: InProcessBroker, run: Run, path: Path
) -> None:
    hold(broker, path, "absent")
    run("rollback", "absent", "--force", "--config", str(path.with_name("escrowmq.toml")))
    assert states(broker) == {"absent": ROLLED_BACK}
    assert outcomes(path) == {"absent": "rolled_back"}
