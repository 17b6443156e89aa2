"""`message get` finds a message by every kind of id that a user may have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Message
from escrowmq.client.producer.producer import Producer
from escrowmq.model.resolution import Resolution
from escrowmq.testing import InProcessBroker

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture(scope="module")
def producer(broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, group="pay", checker=lambda _: Resolution.UNKNOWN) as running:
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", broker.address])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out, told.err

    return run


def got(run: Run, message_id: str) -> tuple[dict[str, object], str]:
    out, err = run("message", "get", message_id, "-o", "json")
    return json.loads(out), json.loads(err)["note"] if err else ""


def test_the_id_that_send_returned(run: Run, producer: Producer) -> None:
    sent = producer.send("orders", b"42")
    found, note = got(run, sent.message_id)
    assert (found["body"], found["state"], found["unique_key"]) == (
        "42",
        "visible",
        sent.message_id,
    )
    assert note == ""


def test_the_ids_that_tail_and_spark_and_consumers_give(
    broker: InProcessBroker, run: Run, producer: Producer
) -> None:
    producer.send("tailed", b"43")
    out, _ = run("message", "tail", "--topic", "tailed", "-o", "json")
    row = json.loads(out)
    # Spark's source has the same two columns.
    assert got(run, row["message_id"])[0]["body"] == "43"
    assert got(run, row["unique_key"])[0]["body"] == "43"
    (received,) = broker.messages("tailed")
    assert got(run, received.message_id)[0]["body"] == "43"


def test_the_id_that_message_send_prints(run: Run) -> None:
    out, _ = run("message", "send", "44", "--topic", "orders")
    assert got(run, out.split()[-1])[0]["body"] == "44"


def test_a_half_message_is_said_not_to_be_visible_yet(run: Run, producer: Producer) -> None:
    half = producer.send_half("orders", b"45")
    found, note = got(run, half.message_id)
    assert (found["body"], found["state"]) == ("45", "prepared")
    assert note.startswith("not visible yet: its transaction is undecided")
    number = note.split("explain ")[1].split()[0]
    assert got(run, number)[0]["body"] == "45"
    assert "is prepared" in run("txn", "explain", number)[0]
    run("txn", "rollback", half.transaction_id, "--reason", "no")
    found, note = got(run, half.message_id)
    assert (found["state"], note) == (
        "rolled_back",
        "never visible: its transaction was rolled back",
    )


def test_a_transaction_s_id_finds_its_first_message(
    broker: InProcessBroker, run: Run, tmp_path: Path
) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    with (
        closing(sqlite3.connect(tmp_path / "shop.db")) as db,
        Producer(broker.address, group="shop", ledger=ledger) as producer,
        producer.transaction(db) as tx,
    ):
        tx.send("orders", b"46")
        tx.send("orders", b"47")
    (row, *_) = json.loads(
        run("txn", "list", "--states", "committed", "--group", "shop", "-o", "json")[0]
    )
    found, note = got(run, row["id"])
    assert (found["body"], found["state"]) == ("46", "visible")
    assert f"escrowmq txn show {row['id']} lists them" in note


def test_a_delayed_message_is_said_to_wait(run: Run, producer: Producer) -> None:
    sent = producer.send("orders", b"48", delay_ms=60_000)
    found, note = got(run, sent.message_id)
    assert found["state"] == "waiting"
    assert note.startswith("not visible yet: it is delayed until 20")


def test_an_id_that_two_messages_have_is_said_so(run: Run, producer: Producer) -> None:
    for body in (b"49", b"50"):
        producer.send(Message(topic="twice", body=body, message_id="same"))
    found, note = got(run, "same")
    assert found["body"] == "50"
    assert "1 more messages have this id, in twice" in note


def test_an_unknown_id_says_what_to_do(run: Run) -> None:
    _, refused = run("message", "get", "nothing", code=2)
    assert "message_unknown" in refused
    assert "escrowmq message query" in refused
