"""The events of the log as a stream: each once, whatever stops and restarts."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.pipeline.source.positions import Kept, places
from escrowmq.pipeline.spark_api import ReadMaxBytes
from escrowmq.pipeline.views import reading as views
from escrowmq.pipeline.views.options import stream_options
from escrowmq.pipeline.views.stream import ViewStreamReader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.retention.retention import retain
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.commands import Append
from escrowmq.transaction.policy import CheckPolicy
from tests.spark import day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Happened = list[tuple[str, int, str]]


class Driven:
    """A stream without a session: makes Spark's calls up to the current end, repeatedly."""

    def __init__(self) -> None:
        #: The offsets that a checkpoint would hold.
        self.offsets: Kept | None = None
        #: For each batch: broker names, log offsets and events.
        self.batches: list[Happened] = []

    def reader(self, *brokers: InProcessBroker, **options: str) -> ViewStreamReader:
        """Return the reader that Spark would call."""
        addresses = ",".join(broker.broker_address for broker in brokers)
        given = {"view": "events", "broker": addresses, **options}
        return ViewStreamReader(stream_options(given), views.schema(given))

    def run(self, *brokers: InProcessBroker, **options: str) -> Happened:
        """Read everything available now; return the new events."""
        reader = self.reader(*brokers, **options)
        first = len(self.batches)
        if self.offsets is None:
            self.offsets = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        while (end := reader.latestOffset(self.offsets, limit)) != self.offsets:
            parts = reader.partitions(self.offsets, end)
            rows = [
                row for part in parts for batch in reader.read(part) for row in batch.to_pylist()
            ]
            self.batches.append(
                [(row["broker_name"], row["log_offset"], row["event"]) for row in rows]
            )
            self.offsets = end
        return [one for batch in self.batches[first:] for one in batch]


@pytest.fixture
def stream() -> Driven:
    return Driven()


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def happened(broker: InProcessBroker, *, name: str = "broker-a") -> Happened:
    """Return all events of a broker."""
    with NativeCalls(broker.broker_address) as calls:
        rows = calls.rows(NativeCode.LIST_EVENTS)
        return sorted((name, row.log_offset, row.event) for row in rows)


def test_each_event_comes_once_across_restarts_of_both_and_a_new_address(
    spark: SparkSession, tmp_path: Path
) -> None:
    come: Happened = []

    def keep(batch: DataFrame, _number: int) -> None:
        come.extend(tuple(row) for row in batch.orderBy("log_offset").collect())

    def run(broker: InProcessBroker) -> None:
        events = spark.readStream.format("escrowmq").option("view", "events")
        events = events.option("broker", broker.broker_address)
        columns = events.option("columns", "broker_name,log_offset,event").load()
        query = columns.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        running = query.start()
        try:
            running.awaitTermination()
        finally:
            running.stop()

    with InProcessBroker(data=tmp_path / "data") as broker:
        day.live(broker.broker_address)
        run(broker)
        assert sorted(come) == happened(broker)
        address = broker.broker_address
    with (
        socket.create_server(address_of(address)),
        InProcessBroker(data=tmp_path / "data") as again,
    ):
        assert again.broker_address != address
        day.live(again.broker_address, named="more")
        run(again)
        assert sorted(come) == happened(again)


def test_a_batch_has_no_more_of_the_log_than_was_allowed(
    broker: InProcessBroker, stream: Driven
) -> None:
    day.live(broker.broker_address)
    whole = happened(broker)
    assert stream.run(broker, maxBytesPerBatch="700") == whole
    assert len(stream.batches) > 3
    # The events of a frame come together, wherever batches end.
    offsets = [{offset for _, offset, _ in batch} for batch in stream.batches]
    assert sum(map(len, offsets)) == len({offset for _, offset, _ in whole})


def test_latest_begins_with_what_comes(broker: InProcessBroker, stream: Driven) -> None:
    day.live(broker.broker_address)
    before = happened(broker)
    assert stream.run(broker, startingOffsets="latest") == []
    day.live(broker.broker_address, named="more")
    assert before + stream.run(broker, startingOffsets="latest") == happened(broker)


def test_a_broker_that_joins_is_read_from_its_start(
    broker: InProcessBroker, stream: Driven
) -> None:
    day.live(broker.broker_address)
    come = stream.run(broker)
    with InProcessBroker(name="broker-b") as other:
        day.live(other.broker_address)
        assert stream.run(broker, other) == happened(other, name="broker-b")
        # A broker that leaves is no data loss: it may come back.
        assert stream.run(other) == []
        day.live(broker.broker_address, named="more")
        assert come + stream.run(broker, other) == happened(broker)


def test_the_state_table_is_no_stream(broker: InProcessBroker, stream: Driven) -> None:
    with pytest.raises(RequestRefused, match=r"bad_option.*halves.*option='view'"):
        stream.run(broker, view="transactions")


def address_of(text: str) -> tuple[str, int]:
    """Split an address for a socket."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def forget(data: Path) -> None:
    """Let retention delete everything in a store, and append something after it."""
    config = StoreConfig(durability="os", segment_bytes_max=4_096, retention_bytes=1)
    store, _ = open_store(OsDisk(data / "store"), config, CheckPolicy(), bytes(8))
    for _ in range(2):
        store.execute(
            Append(messages=(SentMessage(topic="orders", queue_id=0, body=b"x" * 4_096),)), 0
        )
        store.sync()
    retain(store, store.last_at_ms)
    assert store.log.start > 0
    store.close()


def test_data_deleted_by_retention_is_an_error_unless_it_was_allowed(
    stream: Driven, tmp_path: Path
) -> None:
    with InProcessBroker(data=tmp_path / "data") as broker:
        day.live(broker.broker_address)
        come = stream.run(broker, maxBytesPerBatch="1000")
        assert come == happened(broker)
        day.live(broker.broker_address, named="lost")
    forget(tmp_path / "data")
    with InProcessBroker(data=tmp_path / "data") as broker:
        with pytest.raises(RequestRefused, match=r"data_lost.*log_start"):
            stream.run(broker)
        left = stream.run(broker, failOnDataLoss="false")
        # Retention carried the undecided half messages forward.
        assert left == happened(broker)
        assert {event for _, _, event in left} == {"carried"}


def test_a_store_that_was_made_anew_is_data_lost(broker: InProcessBroker, stream: Driven) -> None:
    day.live(broker.broker_address)
    stream.run(broker)
    with InProcessBroker() as anew, NativeCalls(anew.broker_address) as calls:
        day.hold(calls, "first")
        with pytest.raises(RequestRefused, match="data_lost"):
            stream.run(anew)
        assert stream.run(anew, failOnDataLoss="false") == happened(anew)
        assert stream.run(anew) == []


def test_a_log_that_is_as_long_as_the_other_history_was_is_read(tmp_path: Path) -> None:
    """The offsets of two batches are equal, but mean different events."""
    data, copied, stream = tmp_path / "data", tmp_path / "copied", Driven()
    with InProcessBroker(data=data) as broker:
        shutil.copytree(data, copied)
        (copied / "lock").unlink(missing_ok=True)
        with NativeCalls(broker.broker_address) as calls:
            day.hold(calls, "old")
        stream.run(broker)
        broker.stop()
        shutil.rmtree(data)
        shutil.copytree(copied, data)
        broker.start()
        with NativeCalls(broker.broker_address) as calls:
            day.hold(calls, "new")
        reader = stream.reader(broker)
        assert stream.offsets is not None
        before = places(stream.offsets)
        (kept,) = reader.latestOffset(stream.offsets, ReadMaxBytes(2**40)).values()
        end = {"broker-a": {**kept, "at": before["broker-a"]}}
        (part,) = reader.partitions(stream.offsets, end)
        assert part.start < part.end == before["broker-a"]
