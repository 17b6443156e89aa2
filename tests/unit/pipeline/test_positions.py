"""Positions of streams on brokers whose history went back, without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.lineage import Epoch, Lineage, Sight
from escrowmq.pipeline.source.message_columns import spark_schema
from escrowmq.pipeline.source.positions import Kept, fork_of, places, position_of, to_keep
from escrowmq.pipeline.source.stream import MessageStreamReader, stream_reader
from escrowmq.pipeline.spark_api import ReadAllAvailable
from escrowmq.protocol.native.headers import ListQueuesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.topics import decide, hold, row, send

ALL = ReadAllAvailable()


class Restored:
    """A broker, copies of its data directory, and a stream driven as Spark would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.broker = InProcessBroker(data=folder / "data", queue_count=1)
        self.kept: Kept | None = None

    def copy(self, name: str) -> None:
        shutil.copytree(self._folder / "data", self._folder / name)
        (self._folder / name / "lock").unlink(missing_ok=True)

    def restore(self, name: str) -> None:
        self.broker.stop()
        shutil.rmtree(self._folder / "data")
        shutil.copytree(self._folder / name, self._folder / "data")
        self.broker.start()

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.broker.advance(ms=1)
            send(self.broker, row(body))

    def reader(self, **options: str) -> MessageStreamReader:
        given = {"broker": self.broker.broker_address, "topic": "orders", "retryMs": "0", **options}
        made = stream_reader(given, spark_schema(("queue_offset", "body")))
        assert isinstance(made, MessageStreamReader)
        return made

    def batch(self, **options: str) -> list[bytes]:
        """Read everything that is new, as Spark would."""
        stream = self.reader(**options)
        start = stream.initialOffset() if self.kept is None else self.kept
        end: Kept = json.loads(json.dumps(stream.latestOffset(start, ALL)))
        self.kept = end
        assert stream.latestOffset(end, ALL) == end
        return read(stream, start, end)


def read(stream: MessageStreamReader, start: Kept, end: Kept) -> list[bytes]:
    return [
        body
        for partition in stream.partitions(start, end)
        for part in stream.read(partition)
        for body in part.column("body").to_pylist()
    ]


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    made = Restored(tmp_path)
    with made.broker:
        made.broker.create_topic("orders")
        yield made


def test_a_stream_goes_on_at_the_fork(restored: Restored) -> None:
    restored.send(b"a")
    restored.copy("copy")
    restored.send(b"old-b", b"old-c")
    assert restored.batch() == [b"a", b"old-b", b"old-c"]
    restored.restore("copy")
    restored.send(b"new-b")
    assert restored.batch() == [b"new-b"]
    # A restart continues the same lineage.
    restored.broker.restart()
    restored.send(b"new-c", b"new-d")
    assert restored.batch() == [b"new-c", b"new-d"]


def test_a_position_before_the_fork_stays(restored: Restored) -> None:
    restored.send(b"a")
    assert restored.batch() == [b"a"]
    restored.send(b"b")
    restored.copy("copy")
    restored.send(b"old-c")
    restored.restore("copy")
    restored.send(b"new-c")
    assert restored.batch() == [b"b", b"new-c"]


def test_a_restore_that_is_undone_goes_back_to_the_first_history(restored: Restored) -> None:
    """The fork is where the abandoned history starts, which is not an epoch of this broker."""
    restored.send(b"a")
    restored.copy("early")
    restored.send(b"b", b"c")
    restored.copy("late")
    restored.restore("early")
    restored.send(b"tried-b", b"tried-c", b"tried-d")
    assert restored.batch() == [b"a", b"tried-b", b"tried-c", b"tried-d"]
    restored.restore("late")
    restored.send(b"d")
    assert restored.batch() == [b"b", b"c", b"d"]


def test_a_batch_that_is_repeated_after_a_restore_reads_what_is_left_of_it(
    restored: Restored,
) -> None:
    restored.send(b"a")
    restored.copy("copy")
    restored.send(b"old-b")
    stream = restored.reader()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    restored.restore("copy")
    restored.send(b"new-b", b"new-c")
    assert read(restored.reader(), start, end) == [b"a"]
    restored.kept = end
    assert restored.batch() == [b"new-b", b"new-c"]


def test_a_task_does_not_read_another_history_than_was_planned(restored: Restored) -> None:
    restored.send(b"a")
    restored.copy("copy")
    restored.send(b"old-b")
    stream = restored.reader()
    start = stream.initialOffset()
    (planned,) = stream.partitions(start, stream.latestOffset(start, ALL))
    restored.broker.restart()
    assert sum(part.num_rows for part in stream.read(planned)) == 2
    restored.restore("copy")
    restored.send(b"new-b", b"new-c")
    with pytest.raises(Unavailable, match="history_changed"):
        list(stream.read(planned))


def test_another_store_is_read_from_its_start_even_if_it_is_longer(
    restored: Restored, tmp_path: Path
) -> None:
    """The same offset names another message there, so reading on would skip the first ones."""
    restored.send(b"a")
    assert restored.batch() == [b"a"]
    restored.broker.stop()
    with InProcessBroker(data=tmp_path / "other", queue_count=1) as restored.broker:
        restored.send(b"x", b"y")
        with pytest.raises(RequestRefused, match="data_lost"):
            restored.batch()
        assert restored.batch(failOnDataLoss="false") == [b"x", b"y"]
        assert restored.batch() == []


def test_a_checkpoint_of_version_1_goes_on_and_learns_the_history(restored: Restored) -> None:
    restored.send(b"a")
    restored.copy("copy")
    restored.send(b"b")
    restored.kept = {"broker-a": {"orders": {"0": 1}}}
    assert restored.batch() == [b"b"]
    restored.restore("copy")
    restored.send(b"new-b")
    assert restored.batch() == [b"new-b"]


def test_a_checkpoint_of_a_newer_version_is_refused(restored: Restored) -> None:
    restored.kept = {"broker-a": {"version": 3, "anything": "else"}}
    with pytest.raises(RequestRefused, match=r"checkpoint_version_unknown.*update"):
        restored.batch()


def test_a_history_without_a_shared_epoch_is_refused() -> None:
    def sight(*names: str) -> Sight:
        epochs = (Epoch(name, 100 * number, 0, number) for number, name in enumerate(names, 1))
        return Sight(Lineage("store", tuple(epochs)), 1_000, 0)

    with pytest.raises(RequestRefused, match=r"history_unknown.*startingOffsets"):
        fork_of("broker-a", sight("a", "b"), sight("c", "d"))
    assert fork_of("broker-a", sight("a"), None) is None


def test_a_checkpoint_keeps_eight_epochs_and_changes_only_with_what_is_read() -> None:
    epochs = tuple(Epoch(f"e{number}", number, 0, number) for number in range(20))
    sight = Sight(Lineage("store", epochs), 1_000, 7)
    kept = to_keep({"a": 5}, {"a": sight}, {})
    seen = position_of(kept["a"]).sight
    assert seen is not None
    assert seen.lineage.epochs == epochs[-8:]
    grown = Sight(sight.lineage, 2_000, 9)
    assert to_keep({"a": 5}, {"a": grown}, kept) == kept
    assert to_keep({"a": 6}, {"a": grown}, kept) != kept
    # A broker that is not read now keeps its position.
    assert to_keep({"a": 5}, {}, kept) == kept
    assert places(kept) == {"a": 5}


@pytest.mark.parametrize("is_committed_late", [False, True])
def test_ends_of_queues_at_a_log_offset(restored: Restored, *, is_committed_late: bool) -> None:
    """A message is visible from the log offset of its commit, not from where it is stored."""
    broker = restored.broker
    restored.send(b"a")
    half = hold(broker, "t-1", row(b"b"))
    decide_it: Callable[[], object] = lambda: decide(broker, half)  # noqa: E731 - used twice
    if not is_committed_late:
        decide_it()
    with NativeCalls(broker.broker_address) as calls:
        log_end = calls.call(NativeCode.STATUS).header.log_end
        restored.send(b"c")
        if is_committed_late:
            decide_it()
        asked = ListQueuesHeader(topic="orders", until_log=log_end)
        (told,) = calls.rows(NativeCode.LIST_QUEUES, asked)
        assert (told.start, told.end) == (0, 1 if is_committed_late else 2)
        with pytest.raises(RequestRefused, match="no_frame_here"):
            list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(until_log=log_end + 1)))
