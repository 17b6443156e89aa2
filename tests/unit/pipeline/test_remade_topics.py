"""A stream of a topic that is deleted and recreated reads each new message exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.archive.stream import has_reached
from escrowmq.pipeline.source.positions import Kept, places, position_of
from escrowmq.pipeline.spark_api import ReadAllAvailable
from escrowmq.protocol.native.operator_headers import DeleteTopicHeader
from escrowmq.protocol.native.requests import NativeCode
from tests.unit.pipeline.test_positions import Restored

ALL = ReadAllAvailable()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Restored]:
    made = Restored(tmp_path)
    with made.broker:
        made.broker.create_topic("orders")
        yield made


def delete(store: Restored) -> None:
    with NativeCalls(store.broker.broker_address) as calls:
        calls.call(NativeCode.DELETE_TOPIC, DeleteTopicHeader(topic="orders", by="test"))


def remake(store: Restored, *bodies: bytes) -> None:
    delete(store)
    store.broker.create_topic("orders")
    store.send(*bodies)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_topic_that_is_made_again_is_read_from_its_start(store: Restored, count: int) -> None:
    """This includes a new topic with as many messages as the stream had read of the old one."""
    store.send(b"old 1", b"old 2")
    assert store.batch() == [b"old 1", b"old 2"]
    news = [b"new %d" % number for number in range(count)]
    remake(store, *news)
    assert store.batch() == news
    assert store.batch() == []
    store.send(b"more")
    assert store.batch() == [b"more"]


def test_a_position_of_an_older_program_knows_it_by_the_log(store: Restored) -> None:
    store.send(b"old 1", b"old 2")
    store.batch()
    assert store.kept is not None
    del store.kept["broker-a"]["born"]
    assert store.batch() == []
    store.send(b"old 3")
    assert store.batch() == [b"old 3"]
    del store.kept["broker-a"]["born"]
    remake(store, b"new 1", b"new 2", b"new 3")
    assert store.batch() == [b"new 1", b"new 2", b"new 3"]


def test_a_batch_that_was_planned_before_the_topic_was_deleted_is_a_loss(store: Restored) -> None:
    store.send(b"old 1")
    stream = store.reader()
    start = stream.initialOffset()
    end: Kept = json.loads(json.dumps(stream.latestOffset(start, ALL)))
    planned = stream.partitions(start, end)
    remake(store, b"new 1", b"new 2")
    # A late task does not read the new topic in place of the old one.
    with pytest.raises(RequestRefused, match="topic_remade"):
        [list(stream.read(partition)) for partition in planned]
    with pytest.raises(RequestRefused, match="data_lost"):
        stream.partitions(start, end)
    store.kept = end
    careless = store.reader(failOnDataLoss="false")
    assert list(careless.partitions(start, end)) == []
    assert store.batch() == [b"new 1", b"new 2"]


def test_a_deletion_that_a_restore_undid_reads_nothing_twice(store: Restored) -> None:
    store.send(b"old 1", b"old 2")
    assert store.batch() == [b"old 1", b"old 2"]
    store.broker.stop()
    store.copy("before")
    store.broker.start()
    remake(store, b"new 1")
    assert store.batch() == [b"new 1"]
    store.restore("before")
    assert store.batch() == []
    store.send(b"old 3")
    assert store.batch() == [b"old 3"]


def test_an_archive_has_not_reached_a_topic_that_was_made_again(store: Restored) -> None:
    store.send(b"old 1", b"old 2")
    store.batch()
    assert store.kept is not None
    before = store.kept
    assert has_reached(before, before)
    remake(store, b"new 1")
    store.batch()
    after = store.kept
    assert places(after)["broker-a"]["orders"] == {"0": 1}
    assert not has_reached(before, after)
    assert position_of(after["broker-a"]).born != position_of(before["broker-a"]).born
