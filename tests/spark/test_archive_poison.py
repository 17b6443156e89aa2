"""Messages that cannot be read: put into quarantine and reported, without blocking others."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.data_source import EscrowSource
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE, LakeTable
from escrowmq.pipeline.service import jobs
from escrowmq.pipeline.service.lanes import WorkDone
from escrowmq.pipeline.service.telemetry import Telemetry
from escrowmq.protocol.message.compression import INFLATED_BYTES_MAX
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.commands import End, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy
from tests.spark.lakeside import Lakeside
from tests.spark.topics import row, send
from tests.unit.logged import event_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
COMPRESSED = 1
#: A compression type that does not exist yet.
UNHEARD_OF = 1 | 7 << 8


def store_odd(place: Path) -> None:
    """Store a message with invalid UTF-8 properties: brokers refuse it, but disks may have it."""
    place.mkdir(parents=True)
    odd = SentMessage(
        topic="orders",
        queue_id=0,
        body=b"odd",
        properties=b"colour\x01\xff\xfe\x02TAGS\x01t\x02",
        born_at_ms=1,
    )
    store, _ = open_store(OsDisk(place), StoreConfig(durability="os"), CheckPolicy(), HOST)
    now_ms = SystemClock().now_ms()
    held = store.execute(Prepare(group="shop", transaction_id="t", messages=(odd,)), now_ms).reply
    assert isinstance(held, HoldReply)
    ending = End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="somebody")
    store.execute(ending, now_ms)
    store.sync()
    store.close()


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    """Yield a broker with a message that it would refuse today, and an empty lake."""
    store_odd(tmp_path / "data" / "store")
    with InProcessBroker(queue_count=1, data=tmp_path / "data") as broker:
        broker.create_topic("orders")
        yield Lakeside(spark, broker, tmp_path, [MessageStream])


def send_flagged(side: Lakeside, body: bytes, sys_flag: int) -> None:
    send(side.broker, msgspec.structs.replace(row(body), sys_flag=sys_flag))


def test_each_kind_of_poison_is_kept_with_its_problem_and_the_stream_goes_on(
    side: Lakeside, caplog: pytest.LogCaptureFixture
) -> None:
    bomb = zlib.compress(bytes(INFLATED_BYTES_MAX + 1))
    huge = bytes(BODY_BYTES_MAX)
    side.send(b"first")
    send_flagged(side, b"garbage", COMPRESSED)
    send_flagged(side, zlib.compress(b"cut short")[:-6], COMPRESSED)
    send_flagged(side, b"from the future", UNHEARD_OF)
    send_flagged(side, bomb, COMPRESSED)
    # Sound messages: at the size limit, empty, or with unusual names and values.
    side.send(huge, b"")
    strange = {"a=b;": "\u2028'\"", "KEYS": " "}
    send(side.broker, row(b"strange", "orders", 0, **strange))
    with caplog.at_level(logging.INFO, "escrowmq"):
        summary = side.archive()
    assert summary.rows == {"messages": 4, "quarantine": 5}
    assert sorted(side.bodies()) == sorted([b"first", huge, b"", b"strange"])
    assert side.rows(QUARANTINE, "queue_offset", "problem", "body_bytes") == [
        (0, "odd_properties", 3),
        (2, "undecodable_body", 7),
        (3, "undecodable_body", len(zlib.compress(b"cut short")) - 6),
        (4, "undecodable_body", 15),
        (5, "too_large", len(bomb)),
    ]
    told = [record for record in caplog.records if event_of(record) == "messages_quarantined"]
    assert [vars(record)["message_count"] for record in told] == [5]
    telemetry = Telemetry(master="local[2]", started_at_ms=0)
    telemetry.archive.end(WorkDone("archive", result=jobs.facts_of(summary)), 0)
    assert "\nescrowmq_pipeline_archive_rows_quarantine_total 5\n" in telemetry.metrics()
    # Later messages are archived as usual.
    side.send(b"last")
    assert side.archive().rows == {"messages": 1}
    assert (9, b"last") in side.rows(MESSAGES, "queue_offset", "body")


# Two pipelines on one lake.


class Interleaved:
    """Runs a second pipeline in the middle of the first one's commit to a table."""

    def __init__(
        self,
        spark: SparkSession,
        side: Lakeside,
        monkeypatch: pytest.MonkeyPatch,
        table: LakeTable,
    ) -> None:
        self._spark = spark
        self._side = side
        self._table = table
        self._commit = Lake.commit
        #: Error codes of the second pipeline.
        self.refused: list[str] = []
        #: The first pipeline's commit, if it runs before the second becomes the owner.
        self._pending: Any = None
        self._is_first = True
        monkeypatch.setattr(Lake, "commit", self._interleaved())

    def archive_elsewhere(self) -> None:
        """Archive with another session and checkpoint."""
        other = self._spark.newSession()
        other.dataSource.register(EscrowSource)
        folder = self._side.checkpoints.parent
        elsewhere = Lakeside(other, self._side.broker, folder, [MessageStream])
        elsewhere.checkpoints = folder / "other"
        try:
            elsewhere.archive()
        except RequestRefused as error:
            self.refused.append(error.code)

    def _interleaved(self) -> Any:  # noqa: ANN401 -- a method's replacement
        def commit(lake: Lake, table: LakeTable, files: Any, entitled: Any) -> bool:  # noqa: ANN401 -- passed on
            files = list(files)
            if table is self._table and files and self._is_first:
                self._is_first = False
                self._pending = (lake, table, files, entitled)
                self.archive_elsewhere()
                return self._finish()
            if table is MESSAGES and not files and self._table is MESSAGES:
                self._finish()
            return self._commit(lake, table, files, entitled)

        return commit

    def _finish(self) -> bool:
        pending, self._pending = self._pending, None
        return pending is not None and self._commit(*pending)


def test_a_second_pipeline_deletes_nothing_of_an_owner_that_is_alive(
    spark: SparkSession, side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the lake between the owner's two commits of one batch, and claims too late."""
    side.send(b"sound")
    second = Interleaved(spark, side, monkeypatch, MESSAGES)
    side.archive()
    assert second.refused == ["archive_superseded"]
    assert side.bodies() == [b"sound"]
    assert side.rows(QUARANTINE, "queue_offset") == [(0,)]


def test_an_owner_that_was_superseded_adds_nothing_to_the_quarantine(
    spark: SparkSession, side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pipeline takes over and archives everything before the first one's commit."""
    side.send(b"sound")
    second = Interleaved(spark, side, monkeypatch, QUARANTINE)
    with pytest.raises(RequestRefused, match="archive_superseded"):
        side.archive()
    assert second.refused == []
    assert side.bodies() == [b"sound"]
    assert side.rows(QUARANTINE, "queue_offset") == [(0,)]


def test_a_batch_that_was_killed_between_its_commits_is_in_the_quarantine_once(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pipelines die like this, one after the other, the second before it cleaned up."""
    side.send(b"sound")
    commit = Lake.commit

    def dying(lake: Lake, table: LakeTable, files: Any, entitled: Any) -> bool:  # noqa: ANN401 -- passed on
        files = list(files)
        if table is MESSAGES and files:
            raise RequestRefused("planted", "killed here")
        return commit(lake, table, files, entitled)

    with monkeypatch.context() as killing:
        killing.setattr(Lake, "commit", dying)
        with pytest.raises(RequestRefused, match="planted"):
            side.archive()
    assert side.rows(QUARANTINE, "queue_offset") == [(0,)]
    first = side.checkpoints
    with monkeypatch.context() as killing:
        killing.setattr(MessageStream, "_clean_up", lambda *_: pytest.fail("killed"))
        side.checkpoints = first / "second"
        with pytest.raises(pytest.fail.Exception):
            side.archive()
    side.checkpoints = first / "third"
    side.archive()
    assert side.bodies() == [b"sound"]
    assert side.rows(QUARANTINE, "queue_offset") == [(0,)]
