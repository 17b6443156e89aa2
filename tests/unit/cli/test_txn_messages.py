"""`txn list`, `show` and `explain` show the messages of each transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.cli.txn.messages import previews_of
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Message
from escrowmq.client.messages.outgoing import HeldTransaction
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker

Run = Callable[..., str]
EVIL = b"\x1b[2J\nowned"


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def half(broker: InProcessBroker) -> Iterator[HeldTransaction]:
    """Yield an undecided half message."""
    with Producer(broker.address, group="pay", checker=lambda _: Resolution.UNKNOWN) as producer:
        body = b'{"order": 4711}'
        half = producer.send_half(Message(topic="paid", body=body, key="order-4711", tag="eu"))
        yield half


@pytest.fixture
def held(half: HeldTransaction) -> str:
    """Return the transaction id of the half message."""
    return half.transaction_id


def test_a_list_says_which_order_it_is(run: Run, held: str) -> None:
    told = run("txn", "list")
    for named in ("TOPIC", "paid", "order-4711", "eu", '{"order": 4711}', held):
        assert named in told
    (row,) = [one for one in json.loads(run("txn", "list", "-o", "json")) if one["id"] == held]
    assert (row["topic"], row["keys"], row["tags"]) == ("paid", ["order-4711"], "eu")
    assert (row["body_preview"], row["body_bytes"]) == ('{"order": 4711}', 15)
    assert row["message_count"] == 1


def test_a_list_without_messages_does_not_ask_for_them(run: Run, held: str) -> None:
    told = run("txn", "list", "--no-messages")
    assert held in told
    assert "order-4711" not in told


def test_show_lists_the_messages_and_the_events(run: Run, half: HeldTransaction, held: str) -> None:
    told = run("txn", "show", held)
    assert '{"order": 4711}' in told
    assert "held" in told
    shown = json.loads(run("txn", "show", held, "-o", "json"))
    assert (shown["id"], shown["state"], shown["messages_left_out"]) == (held, "prepared", 0)
    (message,) = shown["messages"]
    assert (message["topic"], message["keys"], message["tags"]) == ("paid", ["order-4711"], "eu")
    assert (message["body_preview"], message["unique_key"]) == (
        '{"order": 4711}',
        half.message_id,
    )
    assert shown["events"][0]["event"] == "held"
    assert "at_ms,event,log_offset,by,detail" in run("txn", "show", held, "-o", "csv")


def test_explain_says_which_order_it_is(run: Run, held: str) -> None:
    said = 'Its message is for topic paid, key order-4711, tag eu, 15 bytes: {"order": 4711}'
    assert said in run("txn", "explain", held)
    explained = json.loads(run("txn", "explain", held, "-o", "json"))
    assert said in explained["words"]
    assert explained["messages"][0]["keys"] == ["order-4711"]


def test_several_messages_are_counted_and_no_body_steers_the_terminal(
    broker: InProcessBroker, run: Run, tmp_path: Path
) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    with (
        closing(sqlite3.connect(tmp_path / "shop.db")) as db,
        Producer(broker.address, group="many", ledger=ledger) as producer,
        producer.transaction(db) as tx,
    ):
        for _ in range(25):
            tx.send("paid", EVIL, tag="eu")
    told = run("txn", "list", "--states", "committed", "--group", "many")
    assert "paid +24" in told
    shown = run("txn", "show", told.split()[-1])
    assert "and 5 more" in shown
    for text in (told, shown, run("txn", "explain", told.split()[-1])):
        assert "\x1b" not in text
        assert "\\x1b[2J\\nowned" in text
    assert "The first of its 25 messages is for topic paid" in run(
        "txn", "explain", told.split()[-1]
    )


def test_a_broker_that_does_not_know_the_request_leaves_the_columns_empty(
    broker: InProcessBroker,
) -> None:
    class Older(NativeCalls):
        def call(self, code, header=None, rows=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if code is NativeCode.PREVIEW_HALVES:
                raise RequestRefused("request_unsupported", "request code 30015 is not known here")
            return super().call(code, header, rows)

    with Older(broker.address) as calls:
        assert previews_of(calls, [0]) == {}
