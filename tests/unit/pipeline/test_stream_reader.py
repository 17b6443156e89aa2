"""A stream's reader on a real broker, without Spark: what a batch reads, and what was lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.batch import MessageReader
from escrowmq.pipeline.source.batch import reader as batch_reader
from escrowmq.pipeline.source.message_columns import spark_schema
from escrowmq.pipeline.source.message_reading import RangesPartition
from escrowmq.pipeline.source.offsets import StreamOffsets
from escrowmq.pipeline.source.positions import Kept, places
from escrowmq.pipeline.source.stream import MessageStreamReader, stream_reader
from escrowmq.pipeline.spark_api import ReadAllAvailable, ReadLimit, ReadMaxRows
from escrowmq.store.disk.disk import OsDisk
from escrowmq.testing import InProcessBroker
from tests.spark.topics import row, send
from tests.unit.logged import event_of
from tests.unit.store.helpers import HOUR, Driver, message

ALL = ReadAllAvailable()
COLUMNS = spark_schema(("queue_offset", "body"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    """Yield a broker whose queue 0 has messages 3 and 4. Retention has deleted 0 to 2."""
    (tmp_path / "store").mkdir()
    driver = Driver(OsDisk(tmp_path / "store"))
    driver.append(*(message(f"old {number}") for number in range(3)))
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    driver.append(message("new 3"), message("new 4"))
    driver.retain()
    driver.store.close()
    with InProcessBroker(clock=driver.clock, data=tmp_path, queue_count=1) as broker:
        broker.create_topic("orders")
        yield broker


def reader(broker: InProcessBroker, /, **options: str) -> MessageStreamReader:
    given = {"broker": broker.broker_address, "topic": "orders", "retryMs": "0", **options}
    made = stream_reader(given, COLUMNS)
    assert isinstance(made, MessageStreamReader)
    return made


def at(offset: int) -> StreamOffsets:
    return {"broker-a": {"orders": {"0": offset}}}


def batch(stream: MessageStreamReader, start: Kept, limit: ReadLimit = ALL) -> list[Any]:
    """Read a batch that starts here, and return its bodies."""
    end = stream.latestOffset(start, limit)
    return read(stream, start, end)


def read(stream: MessageStreamReader, start: Kept, end: Kept) -> list[Any]:
    return [
        body
        for partition in stream.partitions(start, end)
        for part in stream.read(partition)
        for body in part.column("body").to_pylist()
    ]


def test_a_stream_begins_with_what_there_is(broker: InProcessBroker) -> None:
    stream = reader(broker)
    assert places(stream.initialOffset()) == at(3)
    assert stream.reportLatestOffset() == at(5)
    assert batch(stream, at(3)) == [b"new 3", b"new 4"]
    assert places(stream.latestOffset(at(5), ALL)) == at(5)
    assert list(stream.partitions(at(5), at(5))) == []


def test_a_stream_begins_at_a_time(broker: InProcessBroker) -> None:
    now_ms = broker.clock.now_ms()
    send(broker, row(b"now"))
    assert places(reader(broker, startingTimestamp=str(now_ms - HOUR)).initialOffset()) == at(3)
    broker.clock.advance(ms=HOUR)
    send(broker, row(b"later"))
    assert places(reader(broker, startingTimestamp=str(now_ms + 2)).initialOffset()) == at(6)
    # No message is that new, so the stream starts with the next one.
    assert places(reader(broker, startingTimestamp=str(now_ms + 2 * HOUR)).initialOffset()) == at(7)


def test_several_brokers_are_read_by_their_names(broker: InProcessBroker) -> None:
    with InProcessBroker(name="broker-b", queue_count=1) as other:
        send(other, row(b"other"))
        addresses = f"{broker.broker_address}, {other.broker_address}"
        stream = reader(
            broker, broker=addresses, startingOffsets='{"broker-a": {"orders": {"0": 4}}}'
        )
        start = stream.initialOffset()
        assert places(start) == at(4) | {"broker-b": {"orders": {"0": 0}}}
        assert batch(stream, start) == [b"new 4", b"other"]
        # A broker that joins is read from its first message.
        assert batch(stream, at(5)) == [b"other"]


def test_limits_are_kept(broker: InProcessBroker) -> None:
    assert reader(broker).getDefaultReadLimit() == ALL
    stream = reader(broker, maxRowsPerBatch="1")
    assert stream.getDefaultReadLimit() == ReadMaxRows(1)
    assert places(stream.latestOffset(at(3), ReadMaxRows(1))) == at(4)
    # Spark may still ask for all rows.
    assert places(stream.latestOffset(at(3), ALL)) == at(5)


def test_messages_after_the_start_are_not_available_now(broker: InProcessBroker) -> None:
    stream = reader(broker, topicPattern="orders|later", topic="")
    stream.prepareForTriggerAvailableNow()
    send(broker, row(b"late"), row(b"later", topic="later"))
    assert places(stream.latestOffset(at(3), ReadMaxRows(100))) == at(5)
    assert places(stream.latestOffset(at(5), ALL)) == at(5)


@pytest.mark.parametrize(
    ("start", "facts"),
    [
        (at(2), {"start": 2, "there_start": 3, "there_end": 5}),
        # A recreated store, a deleted topic, and a queue that the stream has not seen yet.
        (at(6), {"start": 6, "there_start": 3, "there_end": 5}),
        ({"broker-a": {"gone": {"0": 1}, "orders": {"0": 3}}}, {"start": 1, "topic": "gone"}),
        ({"broker-a": {}}, {"start": 0, "there_start": 3, "there_end": 5}),
    ],
)
def test_messages_deleted_unread_are_an_error(
    broker: InProcessBroker, start: StreamOffsets, facts: dict[str, object]
) -> None:
    with pytest.raises(RequestRefused, match=r"data_lost.*failOnDataLoss=false") as raised:
        reader(broker).latestOffset(start, ALL)
    assert facts.items() <= raised.value.fields.items()


@pytest.mark.parametrize("start", [0, 99])
def test_loss_can_be_passed_over(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    stream = reader(broker, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert batch(stream, at(start)) == [b"new 3", b"new 4"]
    assert "data_lost" in {event_of(record) for record in caplog.records}
    assert places(stream.latestOffset(at(start), ReadMaxRows(1))) == at(4)


def test_a_topic_that_was_deleted_can_be_passed_over(broker: InProcessBroker) -> None:
    start = {"broker-a": {"gone": {"0": 1}, "orders": {"0": 4}}}
    stream = reader(broker, failOnDataLoss="false")
    end = stream.latestOffset(start, ALL)
    assert places(end) == {"broker-a": {"gone": {"0": 1}, "orders": {"0": 5}}}
    assert read(stream, start, end) == [b"new 4"]


def test_a_batch_that_is_repeated_after_retention_is_an_error(broker: InProcessBroker) -> None:
    stream = reader(broker)
    for start, end in ((at(0), at(4)), (at(3), at(9)), (at(1), at(2))):
        with pytest.raises(RequestRefused, match="data_lost"):
            stream.partitions(start, end)
    gone: StreamOffsets = {"broker-a": {"gone": {"0": 5}}}
    with pytest.raises(RequestRefused, match="data_lost"):
        stream.partitions({}, gone)
    lenient = reader(broker, failOnDataLoss="false")
    assert read(lenient, at(0), at(4)) == [b"new 3"]
    assert read(lenient, at(1), at(2)) == []
    assert read(lenient, {}, gone) == []


def test_a_task_that_comes_after_retention_is_an_error(broker: InProcessBroker) -> None:
    (planned,) = reader(broker).partitions(at(3), at(5))
    early = tuple(one._replace(start=one.start - 1) for one in planned.ranges)
    late = RangesPartition(planned.address, early)
    with pytest.raises(RequestRefused, match="data_lost"):
        list(reader(broker).read(late))
    found = list(reader(broker, failOnDataLoss="false").read(late))
    assert [part.num_rows for part in found] == [2]


def test_a_queue_that_is_named_and_not_there_is_an_error(broker: InProcessBroker) -> None:
    named = {"startingOffsets": '{"ordres": {"0": 4}}'}
    with pytest.raises(RequestRefused, match="data_lost") as raised:
        reader(broker, **named).initialOffset()
    assert raised.value.fields["topic"] == "ordres"
    assert places(reader(broker, **named, failOnDataLoss="false").initialOffset()) == at(3)


def batch_bodies(broker: InProcessBroker, **options: str) -> list[Any]:
    """Return the bodies that a batch read finds."""
    given = {"broker": broker.broker_address, "topic": "orders", **options}
    made = batch_reader(given, COLUMNS)
    assert isinstance(made, MessageReader)
    parts = [part for one in made.partitions() for part in made.read(one)]
    return [body for part in parts for body in part.column("body").to_pylist()]


def test_a_batch_read_takes_what_there_is(broker: InProcessBroker) -> None:
    assert batch_bodies(broker) == [b"new 3", b"new 4"]
    early = '{"orders": {"0": 1}}'
    with pytest.raises(RequestRefused, match="data_lost"):
        batch_bodies(broker, startingOffsets=early)
    kept = batch_bodies(broker, startingOffsets=early, failOnDataLoss="false")
    assert kept == [b"new 3", b"new 4"]
    with pytest.raises(RequestRefused, match="topic_unknown"):
        batch_bodies(broker, topic="nothing")


@pytest.mark.parametrize(
    "bounds",
    [
        {"startingOffsets": "latest", "endingOffsets": '{"orders": {"0": 4}}'},
        {"startingOffsets": '{"orders": {"0": 4}}', "endingOffsets": "earliest"},
        {"startingOffsets": '{"orders": {"0": 5}}', "endingTimestamp": "0"},
    ],
)
def test_a_batch_read_that_ends_before_it_begins_is_empty(
    broker: InProcessBroker, bounds: dict[str, str]
) -> None:
    assert batch_bodies(broker, **bounds) == []


@pytest.mark.parametrize(
    "bounds",
    [
        # A recreated store, or the offsets of another one.
        {"startingOffsets": '{"orders": {"0": 6}}'},
        {"startingOffsets": '{"orders": {"0": 6}}', "endingOffsets": '{"orders": {"0": 8}}'},
        {"startingOffsets": '{"ordres": {"0": 4}}'},
        {"endingOffsets": '{"orders": {"0": 4, "9": 4}}'},
    ],
)
def test_a_batch_read_of_offsets_that_never_were_is_an_error(
    broker: InProcessBroker, bounds: dict[str, str]
) -> None:
    with pytest.raises(RequestRefused, match="data_lost"):
        batch_bodies(broker, **bounds)
    assert set(batch_bodies(broker, **bounds, failOnDataLoss="false")) <= {b"new 3", b"new 4"}
