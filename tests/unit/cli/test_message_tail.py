"""`message tail` reads the topics of half messages, decisions and parked transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from escrowmq.cli.main import main
from escrowmq.client.producer.producer import Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.message_views import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import CheckPolicy

Tail = Callable[..., list[dict[str, object]]]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(policy=CheckPolicy(checks_max=1)) as running:
        yield running


@pytest.fixture
def producer(broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, group="pay", checker=lambda _: Resolution.UNKNOWN) as running:
        yield running


@pytest.fixture
def tail(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Tail:
    def tail(topic: str, last: int = 10) -> list[dict[str, object]]:
        arguments = ("message", "tail", "--topic", topic, "-n", str(last), "-o", "json")
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", broker.address])
        told = capsys.readouterr()
        assert left.value.code == 0, told.err
        return [json.loads(line) for line in told.out.splitlines()]

    return tail


def test_the_half_topic_has_every_half_message(tail: Tail, producer: Producer) -> None:
    assert tail(HALF_TOPIC) == []
    for number in range(5):
        half = producer.send_half("orders", b"%d" % number)
        if number == 1:
            producer.end(half, Resolution.COMMIT)
    rows = tail(HALF_TOPIC)
    assert [row["body"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["queue_offset"] for row in rows] == [0, 1, 2, 3, 4]
    properties = rows[-1]["properties"]
    assert isinstance(properties, dict)
    assert properties["REAL_TOPIC"] == "orders"
    assert [row["body"] for row in tail(HALF_TOPIC, last=2)] == ["3", "4"]


def test_the_op_topic_has_the_last_decisions_however_far_apart_they_are(
    tail: Tail, producer: Producer
) -> None:
    halves = [producer.send_half("orders", b"x" * 20_000) for _ in range(6)]
    for half in halves[:4]:
        producer.end(half, Resolution.COMMIT)
        producer.send("orders", b"y" * 20_000)
    rows = tail(OP_TOPIC)
    assert [(row["tags"], row["body"]) for row in rows] == [("d", f"{at},") for at in range(4)]
    assert [row["body"] for row in tail(OP_TOPIC, last=2)] == ["2,", "3,"]
    assert tail(OP_TOPIC, last=0) == []


def test_the_topic_of_parked_transactions_has_them(
    broker: InProcessBroker, tail: Tail, producer: Producer
) -> None:
    producer.send_half("orders", b"stuck")
    assert tail(PARKED_TOPIC) == []
    for _ in range(2):
        broker.advance(seconds=3_600)
        broker.run_checks()
    assert broker.undecided() == []
    assert [row["body"] for row in tail(PARKED_TOPIC)] == ["stuck"]
