"""Errors for a user's mistakes: a wrong topic, wrong offsets, another stream's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.batch import MessageReader
from escrowmq.pipeline.source.batch import reader as batch_reader
from escrowmq.pipeline.source.message_columns import spark_schema
from escrowmq.pipeline.source.offsets import Loss, OffsetRange, QueueKey
from escrowmq.pipeline.source.stream import MessageStreamReader, stream_reader
from escrowmq.pipeline.spark_api import ReadAllAvailable
from escrowmq.pipeline.views.reading import schema as view_schema
from escrowmq.pipeline.views.reading import stream_reader as view_stream_reader
from escrowmq.pipeline.views.stream import ViewStreamReader
from escrowmq.testing import InProcessBroker
from tests.spark.topics import row, send
from tests.unit.logged import facts

ALL = ReadAllAvailable()
COLUMNS = spark_schema(("queue_offset", "body"))


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """Yield a broker with one message in its topic ``orders``."""
    with InProcessBroker(queue_count=1) as broker:
        send(broker, row(b"first"))
        yield broker


def given(broker: InProcessBroker, /, **options: str) -> dict[str, str]:
    return {"broker": broker.broker_address, "topic": "orders", "retryMs": "0", **options}


def planned(broker: InProcessBroker, /, **options: str) -> None:
    made = batch_reader(given(broker, **options), COLUMNS)
    assert isinstance(made, MessageReader)
    made.partitions()


def streamed(broker: InProcessBroker, /, **options: str) -> MessageStreamReader:
    made = stream_reader(given(broker, **options), COLUMNS)
    assert isinstance(made, MessageStreamReader)
    return made


def test_a_batch_read_refuses_a_list_with_a_topic_that_no_broker_has(
    broker: InProcessBroker,
) -> None:
    with pytest.raises(RequestRefused, match="topic_unknown") as raised:
        planned(broker, topic="orders,ordres")
    assert raised.value.fields["topic"] == "ordres"


def test_a_topic_of_one_of_several_brokers_is_there(broker: InProcessBroker) -> None:
    with InProcessBroker(name="broker-b", queue_count=1) as other:
        send(other, row(b"other", topic="refunds"))
        both = f"{broker.broker_address},{other.broker_address}"
        planned(broker, broker=both, topic="orders,refunds")


def test_a_stream_says_which_topics_it_waits_for(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    stream = streamed(broker, topic="orders,ordres")
    start = stream.initialOffset()
    assert [one["topic"] for one in facts(caplog, "topic_awaited")] == ["ordres"]
    # Once the topic exists, the stream reads it from its first message.
    send(broker, row(b"late", topic="ordres"))
    partitions = stream.partitions(start, stream.latestOffset(start, ALL))
    bodies: list[Any] = [
        body
        for partition in partitions
        for part in stream.read(partition)
        for body in part.column("body").to_pylist()
    ]
    assert sorted(bodies) == [b"first", b"late"]


@pytest.mark.parametrize(
    ("offsets", "cause"),
    [
        ('{"orders": {"0": 99}}', "the queue ends before this offset"),
        ('{"orders": {"7": 0}}', "no such queue"),
        ('{"ordres": {"0": 0}}', "its topic is not in the options"),
    ],
)
def test_lost_data_is_told_with_its_cause(
    broker: InProcessBroker, offsets: str, cause: str
) -> None:
    with pytest.raises(RequestRefused, match=f"data_lost: .*{cause}.*failOnDataLoss=false"):
        planned(broker, startingOffsets=offsets)


def test_data_deleted_by_retention_is_reported_as_deleted() -> None:
    loss = Loss(QueueKey("broker-a", "orders", 0), 1, 5, OffsetRange(3, 5))
    assert "retention has deleted" in str(loss.error())


def test_streams_of_messages_and_of_views_refuse_each_others_checkpoints(
    broker: InProcessBroker,
) -> None:
    options = {"view": "events", "broker": broker.broker_address}
    view, messages = view_stream_reader(options, view_schema(options)), streamed(broker)
    assert isinstance(view, ViewStreamReader)
    with pytest.raises(RequestRefused, match=r"checkpoint_not_ours.*messages"):
        messages.latestOffset(view.initialOffset(), ALL)
    with pytest.raises(RequestRefused, match=r"checkpoint_not_ours.*view"):
        view.latestOffset(messages.initialOffset(), ALL)
