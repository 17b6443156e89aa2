"""Topics in the lake: each message once, whatever failed on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.pipeline.archive import messages as archive_messages
from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.archive.rounds import append_rounds
from escrowmq.pipeline.archive.tasks import written_by
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE, SETTLE_ROUNDS, LakeTable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.lakeside import Lakeside
from tests.spark.topics import decide, hold, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    """Yield an empty broker and an empty lake."""
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield Lakeside(spark, broker, tmp_path, [MessageStream])


def send_poison(side: Lakeside, body: bytes = b"not compressed at all") -> None:
    """Send a message that is flagged as compressed but is not."""
    poison = row(body)
    fields = {name: getattr(poison, name) for name in poison.__struct_fields__}
    with NativeCalls(side.broker.broker_address) as calls:
        calls.call(NativeCode.SEND_MANY, rows=[type(poison)(**{**fields, "sys_flag": 1})])


def test_committed_messages_are_archived_once_across_restarts(side: Lakeside) -> None:
    side.send(b"a", b"b")
    undecided = hold(side.broker, "t-1", row(b"d", queue_id=1))
    assert side.archive().rows["messages"] == 2
    assert "messages" not in side.archive().rows
    side.broker.restart()
    decide(side.broker, undecided)
    # A topic that is created later is archived, too.
    side.send(b"c", topic="invoices")
    assert side.archive().rows["messages"] == 2
    assert side.bodies() == [b"a", b"b", b"c", b"d"]


def test_a_message_is_told_as_it_was(side: Lakeside) -> None:
    half = hold(side.broker, "t-1", row(b"body", queue_id=1, KEYS="k1 k2", TAGS="t", colour="red"))
    decide(side.broker, half)
    side.archive()
    (found,) = side.lake.open(MESSAGES).to_pyarrow_table().to_pylist()
    assert found["topic"] == "orders"
    assert (found["queue_id"], found["queue_offset"]) == (1, 0)
    assert (found["keys"], found["tags"], found["body"]) == ("k1 k2", "t", b"body")
    assert found["transaction_id"] == "t-1"
    assert dict(found["properties"])["colour"] == "red"
    assert found["visible_at_ms"] >= found["stored_at_ms"]
    assert found["flag"] == 7


def test_a_poison_message_goes_to_quarantine_and_stops_nothing(side: Lakeside) -> None:
    side.send(b"before")
    send_poison(side)
    send_poison(side, bytes(400_000))
    side.send(b"after")
    assert side.archive().rows == {"messages": 2, "quarantine": 2}
    assert side.bodies() == [b"after", b"before"]
    kept = side.rows(QUARANTINE, "queue_offset", "problem", "body", "body_bytes")
    assert kept == [
        (1, "undecodable_body", b"not compressed at all", 21),
        (2, "undecodable_body", bytes(256 * 1024), 400_000),
    ]


class Fault(Exception):
    """Stands for a kill: nothing runs after it."""


def faulty_commit(table: LakeTable, *, is_done: bool) -> Callable[..., bool]:
    """Return a commit that dies at this table, before or after its work."""
    commit = Lake.commit

    def dying(lake: Lake, given: LakeTable, *rest: Any) -> bool:  # noqa: ANN401 -- passed on
        if given is not table:
            return commit(lake, given, *rest)
        if not is_done:
            raise Fault
        # The claim before the first batch commits no files.
        files, entitled = rest
        done = commit(lake, given, files, entitled)
        if files:
            raise Fault
        return done

    return dying


def faulty_writing(*arguments: Any) -> Any:  # noqa: ANN401 -- passed on
    """Write the files, and die."""
    written_by(*arguments)
    raise Fault


def test_whatever_step_it_dies_at_each_message_is_there_once(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.send(b"0")
    side.archive()
    faults: list[tuple[object, str, object]] = [
        (archive_messages, "written_by", faulty_writing),
        (Lake, "commit", faulty_commit(QUARANTINE, is_done=True)),
        (Lake, "commit", faulty_commit(MESSAGES, is_done=True)),
    ]
    for number, (target, name, fault) in enumerate(faults, 1):
        side.send(b"%d" % number)
        send_poison(side, b"poison %d" % number)
        with monkeypatch.context() as dying:
            dying.setattr(target, name, fault)
            with pytest.raises(EscrowError) as caught:
                side.archive()
        assert caught.value.code == "archive_failed"
        side.archive()
        assert side.bodies() == [b"%d" % one for one in range(number + 1)]
        poison = [body for (body,) in side.rows(QUARANTINE, "body")]
        assert poison == [b"poison %d" % one for one in range(1, number + 1)]


def test_a_deleted_checkpoint_makes_nothing_twice_and_leaves_nothing_out(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.send(b"a", b"b")
    send_poison(side, b"first")
    side.send(b"c", topic="invoices", queue_id=1)
    side.archive()
    # The worst moment: the quarantine has a batch that the messages table lacks.
    send_poison(side, b"second")
    side.send(b"d")
    with monkeypatch.context() as dying:
        dying.setattr(Lake, "commit", faulty_commit(QUARANTINE, is_done=True))
        with pytest.raises(EscrowError):
            side.archive()
    shutil.rmtree(side.checkpoints)
    side.send(b"e", queue_id=1)
    side.archive()
    assert side.bodies() == [b"a", b"b", b"c", b"d", b"e"]
    assert side.rows(QUARANTINE, "queue_offset", "body") == [(2, b"first"), (3, b"second")]


def test_a_checkpoint_that_was_replaced_is_refused(side: Lakeside) -> None:
    side.send(b"a")
    side.archive()
    side.checkpoints.rename(side.checkpoints.with_name("old"))
    side.archive()
    shutil.rmtree(side.checkpoints)
    side.checkpoints.with_name("old").rename(side.checkpoints)
    side.send(b"b")
    with pytest.raises(RequestRefused) as caught:
        side.archive()
    assert caught.value.code == "archive_superseded"
    assert side.bodies() == [b"a"]


def test_only_the_topics_of_the_pattern_and_no_system_topics_are_archived(side: Lakeside) -> None:
    side.send(b"a")
    side.send(b"b", topic="invoices")
    assert side.archive(topics="in.*").rows["messages"] == 1
    assert side.rows(MESSAGES, "topic") == [("invoices",)]


def test_many_messages_come_in_batches_of_a_bounded_size(side: Lakeside) -> None:
    side.send(*(b"%03d" % number for number in range(25)))
    assert side.archive(rows_per_batch_max=10).rows["messages"] == 25
    assert side.bodies() == [b"%03d" % number for number in range(25)]
    # The creation of the table, the claim, the first marks, and three batches.
    assert side.lake.open(MESSAGES).version() == 5


def test_a_broker_that_is_away_ends_the_run_and_the_next_one_goes_on(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.send(b"a")
    side.archive()
    side.send(b"b")

    def goes_away(*arguments: Any) -> Any:  # noqa: ANN401 -- passed on
        side.broker.stop()
        return written_by(*arguments)

    with monkeypatch.context() as dying:
        dying.setattr(archive_messages, "written_by", goes_away)
        with pytest.raises(EscrowError):
            side.archive(patience_ms=100)
    side.broker.start()
    side.archive()
    assert side.bodies() == [b"a", b"b"]


def test_a_service_archives_again_and_again_and_rests_between(side: Lakeside) -> None:
    archive = side.archiving(interval_ms=200)
    try:
        for number in range(3):
            side.send(b"%d" % number)
            summary = archive.run()
            # Everything that was there when the run began.
            assert summary.is_complete
            assert side.bodies() == [b"%d" % one for one in range(number + 1)]
        archive.rest()
        side.send(b"3")
        assert archive.run().rows == {"messages": 1}
        # Without new messages, the run does not wait.
        assert archive.run().rows == {}
    finally:
        archive.rest()
    assert side.bodies() == [b"0", b"1", b"2", b"3"]


def test_a_stream_of_a_service_that_ends_is_begun_again(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = side.archiving(interval_ms=200)
    try:
        side.send(b"a")
        with monkeypatch.context() as dying:
            dying.setattr(archive_messages, "written_by", faulty_writing)
            with pytest.raises(EscrowError) as caught:
                archive.run()
        assert caught.value.code == "archive_failed"
        assert archive.run().rows == {"messages": 1}
    finally:
        archive.rest()


def test_rounds_of_settling_are_told_with_all_their_facts(side: Lakeside) -> None:
    facts = {"started_at_ms": 1_793_491_200_000, "seen": 5, "away": ["b:1"]}
    append_rounds(side.lake, [facts])
    rows = side.rows(SETTLE_ROUNDS, "started_at_ms", "seen", "parked", "detail")
    assert rows == [(1_793_491_200_000, 5, None, '{"away":["b:1"]}')]
