"""EndTransaction and the disk: OK after the flush, ids after restarts and restores."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.broker.state.row_places import KEY_FILE
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.store.log.commit_log import CommitLog
from escrowmq.transaction.states import State
from tests.unit.broker.asking import ASK, obey
from tests.unit.broker.grpc_peer import (
    COMMIT,
    ROLLBACK,
    GrpcPeer,
    half,
)
from tests.unit.broker.restoring import back_up, restore
from tests.unit.broker.test_grpc_ending import NEITHER, state_of
from tests.unit.broker.wire import DEADLINE_S, clock_of, eventually, serving, visible

OK, FAILED, INVALID = 20_000, 42_800, 40_008


class HeldFlush:
    """The log's flush, which waits on its thread until the test lets it go or lets it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_held = threading.Event()
        self.may_go = threading.Event()
        self.fails = False
        flush = CommitLog.flush

        def held(log: CommitLog) -> None:
            self.is_held.set()
            assert self.may_go.wait(DEADLINE_S)
            if self.fails:
                raise OSError(errno.EIO, "flush")
            flush(log)

        monkeypatch.setattr(CommitLog, "flush", held)


async def ending_two(
    server: Server, peer: GrpcPeer, resolution: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[HeldFlush, asyncio.Future[list[int]], list[grpc.SendResultEntry]]:
    """End two transactions on a slow disk, whose flush is held on a thread of its own."""
    sent = [(await peer.send(half(f"m{number}"))).entries[0] for number in range(2)]
    for _ in range(100):
        server.broker.writer.flush_times.add(1.0)
    disk = HeldFlush(monkeypatch)
    ending = asyncio.gather(*(peer.end(one, resolution) for one in sent))
    await eventually(disk.is_held.is_set)
    return disk, ending, sent


@pytest.mark.parametrize(("resolution", "seen"), [(COMMIT, 2), (ROLLBACK, 0)])
async def test_ok_comes_after_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolution: int, seen: int
) -> None:
    """While the disk holds the flush back, the decision is written, but neither told nor seen."""
    async with serving(tmp_path, store={"durability": "fsync"}) as server:
        peer, store = GrpcPeer.of(server), server.broker.store
        disk, ending, _ = await ending_two(server, peer, resolution, monkeypatch)
        try:
            assert state_of(server) is not State.PREPARED
            assert store.log.written == store.log.end > store.durable_end
            # The broker serves others meanwhile.
            route = grpc.QueryRouteRequest(topic=grpc.Resource(name="orders"))
            for _ in range(20):
                assert (await peer.ask("QueryRoute", route)).status.code == OK
            assert not ending.done()
            assert visible(server) == []
        finally:
            disk.may_go.set()
        assert await ending == [OK, OK]
        assert store.durable_end == store.log.end
        assert len(visible(server)) == seen


async def test_an_end_during_the_flush_of_another_is_told_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat, the opposite and an unspecified end refer to a decision that is not durable yet."""
    async with serving(tmp_path, store={"durability": "fsync"}) as server:
        peer = GrpcPeer.of(server)
        disk, ending, sent = await ending_two(server, peer, COMMIT, monkeypatch)
        later = asyncio.gather(*(peer.end(sent[0], said) for said in (COMMIT, ROLLBACK, NEITHER)))
        try:
            route = grpc.QueryRouteRequest(topic=grpc.Resource(name="orders"))
            for _ in range(20):
                assert (await peer.ask("QueryRoute", route)).status.code == OK
            assert not any(call.done() for call in (ending, later))
        finally:
            disk.may_go.set()
        assert await ending == [OK, OK]
        assert await later == [OK, FAILED, OK]
        assert len(visible(server)) == 2


async def test_a_decision_whose_flush_failed_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, store={"durability": "fsync"}) as server:
        disk, ending, _ = await ending_two(server, GrpcPeer.of(server), COMMIT, monkeypatch)
        disk.fails = True
        disk.may_go.set()
        assert await ending == [50_001, 50_001]
        assert visible(server) == []


async def test_a_lone_decision_is_told_after_its_flush_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is flushed on the loop's thread, so the answer is looked for during the flush."""
    async with serving(tmp_path, store={"durability": "fsync"}) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        flush, seen = CommitLog.flush, []

        def observed(log: CommitLog) -> None:
            seen.append((call.sent.qsize(), call.ended.done(), len(visible(server))))
            flush(log)

        monkeypatch.setattr(CommitLog, "flush", observed)
        call = peer.begin(
            "EndTransaction",
            grpc.EndTransactionRequest(
                topic=grpc.Resource(name="orders"),
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                resolution=COMMIT,
            ),
        )
        assert (await call.take(grpc.EndTransactionResponse)).status.code == OK
        assert seen == [(0, False, 0)]
        assert len(visible(server)) == 1


async def test_ids_from_before_a_restore_are_invalid_and_checks_ask_with_new_ones(
    tmp_path: Path,
) -> None:
    """A backup never holds the key, so a restored broker makes another one."""
    live, copy, restored = (tmp_path / name for name in ("live", "copy", "restored"))
    async with serving(live) as server:
        (sent,) = (await GrpcPeer.of(server).send(half())).entries
        old = server.broker.key
    back_up(live, copy)
    assert not list(copy.rglob(KEY_FILE))
    restore(copy, restored)
    async with serving(restored) as server:
        peer = GrpcPeer.of(server, "after")
        assert server.broker.key != old
        assert await peer.end(sent, COMMIT) == INVALID
        assert state_of(server) is State.PREPARED
        stream = await peer.produce("orders")
        clock_of(server).advance(ms=6_001)
        assert await obey(server, ASK) == "asked"
        command = await stream.take(grpc.TelemetryCommand)
        orphan = command.recover_orphaned_transaction_command
        again = grpc.SendResultEntry(
            message_id=sent.message_id, transaction_id=orphan.transaction_id
        )
        assert again.transaction_id != sent.transaction_id
        assert await peer.end(again, COMMIT) == OK
        assert [one.body for one in visible(server)] == [b"paid"]


async def test_a_producer_and_a_broker_that_both_restarted_end_the_orphan(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server, "before")
        await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server, "after")
        clock_of(server).advance(ms=6_001)
        assert await obey(server, ASK) == "no_producer"
        await peer.again("of-other-topics").produce("others")
        assert await obey(server, ASK) == "no_producer"
        stream = await peer.produce("others", "orders")
        assert await obey(server, ASK) == "asked"
        command = await stream.take(grpc.TelemetryCommand)
        orphan = command.recover_orphaned_transaction_command
        assert orphan.message.system_properties.message_id == sent.message_id
        again = grpc.SendResultEntry(
            message_id=sent.message_id, transaction_id=orphan.transaction_id
        )
        assert await peer.end(again, COMMIT, source=2) == OK
        # The id from before the restarts still names the same transaction.
        assert await peer.end(sent, COMMIT) == OK
        assert await peer.end(sent, ROLLBACK) == FAILED
        assert [one.body for one in visible(server)] == [b"paid"]
