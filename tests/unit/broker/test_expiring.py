"""Producer groups, queries and consumer groups that expire because they are unused."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.model.limits_config import DAY_MS
from escrowmq.protocol.native.headers import ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import QueryOffsetHeader, UpdateOffsetHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.native_peer import all_rows, ask
from tests.unit.broker.test_delivering import PULL, pulling, shop
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    facts,
    half,
    make_topic,
    sending,
    serving,
)

EXPIRE_MS = 30 * DAY_MS


async def test_a_new_producer_group_is_accepted_after_dead_ones_expired(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, limits={"origins_max": 2}) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(2):
            answer = await peer.ask(SEND, half(f"k-{number}", PGROUP=f"group-{number}"))
            end = ending(answer, COMMIT, producer_group=f"group-{number}")
            assert (await peer.ask(END, end)).code == ResponseCode.SUCCESS
        answer = await peer.ask(SEND, half("k-2", PGROUP="group-2"))
        assert "too_many_origins" in answer.remark
        clock.advance(ms=EXPIRE_MS + 1)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["origins"] == 2
        answer = await peer.ask(SEND, half("k-2", PGROUP="group-2"))
        assert answer.code == ResponseCode.SUCCESS
        # The transactions of expired groups are still listed under their names.
        header = ListTransactionsHeader(states="committed,prepared", with_ids=True)
        rows = await all_rows(peer, NativeCode.LIST_TRANSACTIONS, header)
        assert [row.producer_group for row in rows] == ["group-0", "group-1", "group-2"]
        names = await ask(peer, NativeCode.LIST_NAMES)
        origins = {row.number: row.name for row in names.rows if row.kind == "origin"}
        assert origins == {0: "group-0", 1: "group-1", 2: "group-2"}


async def test_a_query_that_is_over_expires(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=3, by="spark")
        await ask(peer, NativeCode.DECIDE_BATCH, header)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts.total() == 0
        clock.advance(ms=EXPIRE_MS + 1)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["queries"] == 1
        assert server.broker.store.core.batches.judge("app", "q", 3) == "expired"


# Consumer groups and their offsets.

#: A name may have been used up to a day after its last note.
LATER_MS = EXPIRE_MS + DAY_MS + 1
RETENTION = {"segment_bytes_max": 4_096, "retention_ms": DAY_MS, "copy_after_ms": 1}


async def expire(server: Server) -> dict[str, int]:
    """Expire unused names; return how many expired, by kind."""
    before = dict(server.broker.expiring.counts)
    await server.broker.expiring.run()
    after = server.broker.expiring.counts
    return {kind: count - before[kind] for kind, count in after.items() if count - before[kind]}


async def later(server: Server, clock: ManualClock, ms: int) -> None:
    """Note all uses so far, then let time pass."""
    await server.broker.expiring.run()
    clock.advance(ms=ms)


async def fill(peer: Peer, topic: str = "orders", queue_id: int = 1, count: int = 8) -> None:
    """Send more bytes than one segment of the log holds."""
    for _ in range(count):
        answer = await peer.ask(SEND, sending(topic, queue_id=queue_id), bytes(1_000))
        assert answer.code == ResponseCode.SUCCESS


async def read(peer: Peer, group: str, offset: int) -> None:
    """Read and commit this offset as a group."""
    assert (await peer.ask(PULL, pulling(offset, consumer_group=group))).remark
    header = UpdateOffsetHeader(
        consumer_group=group, topic="orders", queue_id=1, commit_offset=offset
    )
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def offset_of(peer: Peer, group: str) -> int | None:
    """Return the offset that a stock client gets at its start; None makes it begin at the end."""
    header = QueryOffsetHeader(consumer_group=group, topic="orders", queue_id=1, zero_if_none=False)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return int(facts(answer)["offset"]) if answer.code == ResponseCode.SUCCESS else None


async def test_new_groups_are_accepted_after_dead_ones_expired(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    limits = {"groups_max": 2, "offsets_max": 2}
    async with serving(tmp_path, clock, limits=limits) as server:
        peer = await Peer.to(server.broker_address)
        await fill(peer)
        for group in ("dead-1", "dead-2"):
            await read(peer, group, 8)
        answer = await peer.ask(PULL, pulling(consumer_group="new"))
        assert "groups_limit" in answer.remark
        await later(server, clock, LATER_MS - 1)
        assert await expire(server) == {}
        await later(server, clock, 1)
        assert await expire(server) == {"groups": 2}
        assert not server.broker.meta.offsets
        await read(peer, "new", 8)
        assert list(server.broker.catalog.groups) == ["new"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_expired_group_that_returns_starts_at_the_start_of_the_queue(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store=RETENTION) as server:
        peer = await Peer.to(server.broker_address)
        await fill(peer)
        await read(peer, "dead", 8)
        await fill(peer)
        await later(server, clock, LATER_MS)
        await fill(peer)
        await server._retain()
        start = server.broker.queues.get("orders", 1).start  # type: ignore[union-attr]
        # The message at its offset is deleted, so the offset no longer stands for a backlog.
        assert start > 8
        assert await expire(server) == {"groups": 1}
        if not is_restarted:
            assert await offset_of(peer, "dead") == start
            assert await offset_of(peer, "new") is None
    if is_restarted:
        async with serving(tmp_path, clock, store=RETENTION) as server:
            peer = await Peer.to(server.broker_address)
            assert await offset_of(peer, "dead") == start
            # The group gets the same start after it returns, for queues that it has not read since.
            await peer.ask(PULL, pulling(start, consumer_group="dead"))
            assert "dead" in server.broker.catalog.groups
            assert await offset_of(peer, "dead") == start
            assert await offset_of(peer, "new") is None


async def test_offsets_with_a_backlog_stay(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await fill(peer)
        await read(peer, "behind", 5)
        await read(peer, "done", 8)
        await later(server, clock, LATER_MS)
        assert await expire(server) == {"groups": 1}
        assert await offset_of(peer, "behind") == 5


async def test_a_group_that_is_online_or_reads_is_used(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await fill(peer)
        await read(peer, "reads", 8)
        await read(peer, "dead", 8)
        for _ in range(32):
            await later(server, clock, DAY_MS)
            await read(peer, "reads", 8)
            await server.broker.expiring.run()
        assert set(server.broker.catalog.groups) == {"shop", "reads"}
        # The broker notes a use at most once a day.
        records = server.broker.store.log.end
        for _ in range(100):
            await read(peer, "reads", 8)
            await server.broker.expiring.run()
        assert server.broker.store.log.end == records


async def test_a_group_that_an_operator_made_does_not_expire(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 4)
        await peer.ask(PULL, pulling(consumer_group="touched"))
        for name in ("made", "touched"):
            body = encode_body(GroupConfig(name=name))
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            assert (await peer.ask(code, body=body)).code == ResponseCode.SUCCESS
        await peer.ask(PULL, pulling(consumer_group="unmade"))
        await later(server, clock, LATER_MS)
        assert await expire(server) == {"groups": 1}
        assert set(server.broker.catalog.groups) == {"made", "touched"}


async def test_groups_stay_where_they_could_not_be_made_again(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 4)
        await peer.ask(PULL, pulling(consumer_group="unmade"))
    clock.advance(ms=LATER_MS)
    async with serving(tmp_path, clock, topics={"auto_create_groups": False}) as server:
        assert await expire(server) == {}
