"""Topics that a producer declares: found at its start, and typed by their first message."""

from __future__ import annotations

import pytest

from escrowmq import AsyncProducer, Producer, Resolution
from escrowmq.client.config import TOPICS_MAX
from escrowmq.model.catalog import MessageType
from escrowmq.model.errors import RequestRefused
from escrowmq.testing import InProcessBroker


def type_of(broker: InProcessBroker, topic: str) -> MessageType:
    found = broker._running.broker.catalog.topic(topic)
    assert found is not None
    return found.message_type


def test_a_producer_whose_topic_is_unknown_does_not_start() -> None:
    with InProcessBroker(auto_create=False) as broker:
        broker.create_topic("paid")
        with (
            pytest.raises(RequestRefused, match="topic_unknown"),
            Producer(broker.address, "pay", topics=["paid", "sent"]),
        ):
            pass
        with Producer(broker.address, "pay", topics=["paid"]) as producer:
            producer.send("paid", b"1")


async def test_an_async_producer_whose_topic_is_unknown_does_not_start() -> None:
    with InProcessBroker(auto_create=False) as broker:
        producer = AsyncProducer(broker.address, "pay", topics=["sent"])
        with pytest.raises(RequestRefused, match="topic_unknown"):
            await producer.start()
        broker.create_topic("sent")
        await producer.send("sent", b"1")
        await producer.close()


def test_a_topic_that_a_message_may_create_is_no_reason_not_to_start() -> None:
    with InProcessBroker() as broker:
        with Producer(broker.address, "pay", topics=("paid", "paid")) as producer:
            producer.send("not-declared", b"1")
            assert broker._running.broker.catalog.topic("paid") is None
        assert [one.body for one in broker.messages("not-declared")] == [b"1"]


def test_the_first_message_gives_a_topic_its_type() -> None:
    with InProcessBroker() as broker, Producer(broker.address, "pay") as producer:
        held = producer.send_half("paid", b"1")
        producer.send("sent", b"1")
        producer.end(held, Resolution.COMMIT)
        assert type_of(broker, "paid") is MessageType.TRANSACTION
        assert type_of(broker, "sent") is MessageType.NORMAL
        # Types are not enforced for this client, so either message may go to either topic.
        producer.send("paid", b"2")
        producer.end(producer.send_half("sent", b"2"), Resolution.COMMIT)
        assert len(broker.messages("paid")) == len(broker.messages("sent")) == 2


def test_a_producer_that_restarts_is_asked_about_its_orphans() -> None:
    with InProcessBroker() as broker:
        with Producer(broker.address, "pay", topics=["paid"]) as producer:
            producer.send_half("paid", b"orphan")
        broker.restart()
        broker.advance(seconds=61)
        asked = []

        def check(message: object) -> Resolution:
            asked.append(message)
            return Resolution.COMMIT

        with Producer(broker.address, "pay", topics=["paid"], checker=check):
            broker.run_checks()
            assert [one.body for one in broker.messages("paid")] == [b"orphan"]
        assert len(asked) == 1
        assert broker.undecided() == []


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ("paid", "bad_config"),
        (b"paid", "bad_config"),
        (7, "bad_config"),
        ([7], "bad_config"),
        ([f"t{number}" for number in range(TOPICS_MAX + 1)], "bad_config"),
        ([""], "topic_illegal"),
        (["a b"], "topic_illegal"),
    ],
)
def test_what_is_no_list_of_topics_is_refused(
    kind: type[Producer | AsyncProducer], topics: object, code: str
) -> None:
    with pytest.raises(RequestRefused, match=code):
        kind("127.0.0.1:9876", "pay", topics=topics)  # type: ignore[arg-type]  # wrong on purpose
