"""Requests to brokers about their queues."""

from __future__ import annotations

import threading

import pytest

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.sink_attempt import OPENING_TOPIC
from escrowmq.pipeline.source.offsets import OffsetRange, QueueKey
from escrowmq.pipeline.source.queues import TopicSelection, known, patiently
from escrowmq.testing import InProcessBroker
from tests.spark.topics import row, send


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (TopicSelection(("orders", "nothing"), ""), {"orders"}),
        (TopicSelection(("%DLQ%shop",), ""), {"%DLQ%shop"}),
        (TopicSelection((), "or.*"), {"orders", "orders-2"}),
        # A pattern must match the whole name.
        (TopicSelection((), "orders"), {"orders"}),
        (TopicSelection((), ".*"), {"orders", "orders-2"}),
        (TopicSelection((), "%DLQ%.*"), {"%DLQ%shop"}),
    ],
)
def test_topics_are_chosen_by_name_or_pattern(topics: TopicSelection, expected: set[str]) -> None:
    there = ["orders", "orders-2", "%RETRY%shop", "%DLQ%shop", OPENING_TOPIC]
    assert topics.chosen(there) == expected


def test_a_broker_that_comes_back_is_waited_for() -> None:
    with InProcessBroker(queue_count=1) as broker:
        send(broker, row())
        address = broker.broker_address
        broker.stop()
        back = threading.Timer(0.3, broker.start)
        back.start()
        found = known([address], TopicSelection(("orders",), ""), 20)
        back.join()
        assert found.spans == {QueueKey("broker-a", "orders", 0): OffsetRange(0, 1)}
        assert found.addresses == {"broker-a": address}


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("time.monotonic", lambda: sum(waits))
    with pytest.raises(Unavailable):
        known(["127.0.0.1:1"], TopicSelection(("orders",), ""), 10)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]

    def refuse() -> None:
        raise RequestRefused("topic_unknown")

    # A refusal is not retried, because the broker would refuse again.
    with pytest.raises(RequestRefused):
        patiently(refuse, 10)


def test_a_broker_is_named_once() -> None:
    with InProcessBroker() as broker, pytest.raises(RequestRefused, match="broker_named_twice"):
        known([broker.broker_address] * 2, TopicSelection(("orders",), ""), 0)
