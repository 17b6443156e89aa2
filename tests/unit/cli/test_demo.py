"""The demo: a real process is killed, and what it left is held against what it said."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.cli import demo_judge
from escrowmq.cli.demo_judge import Acknowledged, compare, reopened, write_and_die
from escrowmq.cli.demo_text import Teller
from escrowmq.cli.demo_writer import fate, key, parts
from escrowmq.cli.main import main
from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk import OsDisk
from escrowmq.store.inspect import check
from escrowmq.transaction.states import Resolution, State

ORDERS = 100


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "data"


@pytest.fixture(scope="module")
def said(data: Path) -> Acknowledged:
    return write_and_die(data, ORDERS)


def test_the_demo_finds_nothing_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("demo", "--orders", str(ORDERS)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("EscrowMQ demo: a process is killed in the middle of its work\n")
    assert "bytes of a torn frame cut off" in printed
    assert printed.endswith("Nothing lost, nothing doubled, nothing visible too early.\n")


def test_the_data_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("demo", "--orders", "100", "--data", str(tmp_path / "kept")) == 0
    assert not check(OsDisk(tmp_path / "kept" / "store", read_only=True)).is_damaged
    assert exit_code("demo", "--data", str(tmp_path / "kept")) == 2
    assert "demo_directory_exists" in capsys.readouterr().err


def test_the_child_dies_between_its_first_and_its_last_decision(said: Acknowledged) -> None:
    assert len(said.held) == ORDERS
    assert said.committed
    assert said.rolled_back
    assert said.in_flight
    assert said.sent <= {order for order in range(ORDERS) if fate(order) is not None}


def test_what_was_found_is_what_was_said(data: Path, said: Acknowledged) -> None:
    with reopened(data) as (store, found, _):
        compared = compare(store, said)
        assert found.cut_bytes > 0
    assert compared.broken == []
    assert compared.told[State.COMMITTED] == len(said.committed)
    assert compared.told[State.ROLLED_BACK] == len(said.rolled_back)
    assert compared.told_visible == sum(parts(order) for order in said.committed)
    assert sum(compared.in_flight.values()) == len(said.in_flight)


def test_whatever_is_broken_is_named(
    data: Path, said: Acknowledged, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison is given another story than the child's: it must not believe the store."""
    a_commit, a_rollback = min(said.committed), min(said.rolled_back)
    lie = Acknowledged(
        held={*said.held, 5_000} - {1},
        sent=set(said.sent),
        committed={*said.committed, a_rollback} - {a_commit},
        rolled_back={*said.rolled_back, a_commit} - {a_rollback},
    )
    with reopened(data) as (store, _, _):
        compared = compare(store, lie)
    assert compared.broken == [
        f"{key(a_commit)} is committed, it was rolled_back",
        f"{key(a_rollback)} is rolled_back, it was committed",
        f"{key(5_000)} was acknowledged and is lost",
        f"{key(1)} is visible and was never sent",
    ]
    Teller(ORDERS).verdict(compared)
    assert "The promise is broken:" in capsys.readouterr().out


def test_a_message_that_came_twice_is_noticed(
    data: Path, said: Acknowledged, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reopened(data) as (store, _, _):
        seen = demo_judge.visible_messages(store)
        order = min(said.committed)
        seen[key(order)] += 1
        monkeypatch.setattr(demo_judge, "visible_messages", lambda _store: seen)
        broken = compare(store, said).broken
    assert broken == [f"{key(order)} is committed: {parts(order) + 1} of its messages are visible"]


def test_a_broken_promise_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = demo_judge.Compared(broken=["an order is lost"])
    monkeypatch.setattr(demo_judge, "compare", lambda _store, _said: broken)
    assert exit_code("demo", "--orders", "100") == 1
    assert "an order is lost" in capsys.readouterr().out


def test_a_child_that_does_not_die_of_the_signal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"not a directory")
    with pytest.raises(StoreUnusable, match="demo_failed"):
        write_and_die(tmp_path, ORDERS)


def test_an_order_of_three_messages_is_among_them() -> None:
    assert {parts(order) for order in range(ORDERS)} == {1, 3}
    assert {fate(order) for order in range(ORDERS)} == {
        Resolution.COMMIT,
        Resolution.ROLLBACK,
        None,
    }
