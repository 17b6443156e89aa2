"""What a broker lets go by itself because nobody uses it any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.model.limits_config import DAY_MS
from escrowmq.protocol.admin_headers import RouteHeader
from escrowmq.protocol.bodies import encode_body
from escrowmq.protocol.cluster_bodies import GroupConfig
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import QueryOffsetHeader, UpdateOffsetHeader
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import ListQueuesHeader, ListTransactionsHeader
from escrowmq.protocol.own_sink_headers import DecideBatchHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.own_peer import all_rows, ask
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
        # What expired groups have sent is still listed under their names.
        header = ListTransactionsHeader(states="committed,prepared", with_ids=True)
        rows = await all_rows(peer, OwnCode.LIST_TRANSACTIONS, header)
        assert [row.producer_group for row in rows] == ["group-0", "group-1", "group-2"]
        names = await ask(peer, OwnCode.LIST_NAMES)
        origins = {row.number: row.name for row in names.rows if row.kind == "origin"}
        assert origins == {0: "group-0", 1: "group-1", 2: "group-2"}


async def test_a_query_that_is_over_expires(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=3, by="spark")
        await ask(peer, OwnCode.DECIDE_BATCH, header)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts.total() == 0
        clock.advance(ms=EXPIRE_MS + 1)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["queries"] == 1
        assert server.broker.store.core.batches.judge("app", "q", 3) == "expired"


# Consumer groups and their offsets.

#: A use may be a day later than its note.
LATER_MS = EXPIRE_MS + DAY_MS + 1
RETENTION = {"segment_bytes_max": 4_096, "retention_ms": DAY_MS, "copy_after_ms": 1}


async def expire(server: Server) -> dict[str, int]:
    """Let go of what is unused; what went, by kind."""
    before = dict(server.broker.expiring.counts)
    await server.broker.expiring.run()
    after = server.broker.expiring.counts
    return {kind: count - before[kind] for kind, count in after.items() if count - before[kind]}


async def later(server: Server, clock: ManualClock, ms: int) -> None:
    """Let time pass; what was used until now is noted before."""
    await server.broker.expiring.run()
    clock.advance(ms=ms)


async def fill(peer: Peer, topic: str = "orders", queue_id: int = 1, count: int = 8) -> None:
    """Send more than a segment of the log takes."""
    for _ in range(count):
        answer = await peer.ask(SEND, sending(topic, queue_id=queue_id), bytes(1_000))
        assert answer.code == ResponseCode.SUCCESS


async def read(peer: Peer, group: str, offset: int) -> None:
    """Be a group that has come to this offset."""
    assert (await peer.ask(PULL, pulling(offset, consumer_group=group))).remark
    header = UpdateOffsetHeader(
        consumer_group=group, topic="orders", queue_id=1, commit_offset=offset
    )
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def offset_of(peer: Peer, group: str) -> int | None:
    """What a stock client is told when it starts; None lets it begin at the end."""
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
        # The message at its offset is gone: it has no backlog that its offset would find.
        assert start > 8
        assert await expire(server) == {"groups": 1}
        if not is_restarted:
            assert await offset_of(peer, "dead") == start
            assert await offset_of(peer, "new") is None
    if is_restarted:
        async with serving(tmp_path, clock, store=RETENTION) as server:
            peer = await Peer.to(server.broker_address)
            assert await offset_of(peer, "dead") == start
            # And when it is there again, in queues that it has not read since.
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
        # Uses are noted once a day at most.
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


# Topics.


async def test_an_empty_topic_that_a_message_made_expires(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store=RETENTION) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "by-operator")
        await fill(peer, "by-message", 0)
        await fill(peer, "in-use", 0)
        numbers = dict(server.broker.store.core.names.queues_of["by-message"])
        await later(server, clock, LATER_MS)
        await fill(peer, "in-use", 0)
        # It is unused, but what it holds is still there.
        assert await expire(server) == {}
        await server._retain()
        assert await expire(server) == {"topics": 1}
        assert set(server.broker.catalog.topics) == {"by-operator", "in-use"}
        # One that is made again is new, with numbers that were never used.
        await fill(peer, "by-message", 0, count=1)
        queue = server.broker.queues.get("by-message", 0)
        assert queue is not None
        assert (queue.start, queue.end) == (0, 1)
        again = server.broker.store.core.names.queues_of["by-message"]
        assert not set(again.values()) & set(numbers.values())


async def test_a_topic_that_clients_ask_for_is_used(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store=RETENTION) as server:
        peer = await Peer.to(server.broker_address)
        for topic in ("routed", "streamed", "pulled", "unused"):
            await fill(peer, topic, 0, count=1)
        await fill(peer, "filler", 0)
        for _ in range(33):
            await later(server, clock, DAY_MS)
            await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic="routed"))
            await ask(peer, OwnCode.LIST_QUEUES, ListQueuesHeader(topic="streamed,nothing"))
            await peer.ask(PULL, pulling(topic="pulled", queue_id=0))
            await fill(peer, "filler", 0)
            await server._retain()
            await server.broker.expiring.run()
        names = {name for name in server.broker.catalog.topics if not name.startswith("%")}
        assert names == {"routed", "streamed", "pulled", "filler"}


@pytest.mark.parametrize("held", ["undecided", "delayed"])
async def test_a_topic_stays_while_something_is_held_back_in_it(tmp_path: Path, held: str) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store=RETENTION) as server:
        peer = await Peer.to(server.broker_address)
        if held == "undecided":
            await peer.ask(SEND, half("k"))
        else:
            delay = {"TIMER_DELAY_MS": str(100 * DAY_MS)}
            await peer.ask(SEND, sending(properties=delay), b"x")
        await later(server, clock, LATER_MS)
        assert await expire(server) == {}
        assert "orders" in server.broker.catalog.topics


async def test_retry_and_dead_letter_topics_go_with_their_group(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        assert "%RETRY%shop" in server.broker.catalog.topics
        peer.close()
        await later(server, clock, LATER_MS)
        server.broker.heartbeats.expire()
        assert await expire(server) == {"groups": 1, "topics": 1}
        assert "%RETRY%shop" not in server.broker.catalog.topics


async def test_topics_stay_where_no_message_may_make_them(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("k"))
        await peer.ask(END, ending(await peer.ask(SEND, half("l")), COMMIT))
    clock.advance(ms=LATER_MS)
    async with serving(tmp_path, clock, topics={"auto_create": False}) as server:
        assert (await expire(server)).get("topics") is None


# Time, and everything that is kept by name.


async def test_nothing_expires_while_time_is_in_doubt(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 4)
        await peer.ask(PULL, pulling(consumer_group="unmade"))
        await server.broker.expiring.run()
        # The wall clock jumps, and nobody vouches for it; then the kernel does.
        clock.synchronized = False
        clock.jump(ms=LATER_MS)
        await server.broker.clock.look()
        assert not server.broker.clock.may_delete
        assert await expire(server) == {}
        clock.synchronized = True
        await server.broker.clock.look()
        assert await expire(server) == {}
        clock.advance(ms=3_600_001)
        await server.broker.clock.look()
        assert await expire(server) == {"groups": 1}


def kept(server: Server, data: Path) -> dict[str, int]:
    """How much is kept by name, wherever that is."""
    broker = server.broker
    core, counts = broker.store.core, broker.counts
    return {
        "topics": len(core.catalog.topics),
        "shown topics": len(broker.catalog.topics),
        "groups": len(core.catalog.groups),
        "uses": len(core.uses.groups) + len(core.uses.topics),
        "queues": len(core.names.queues) + len(core.queue_ends) + len(broker.store.queues),
        "offsets": len(broker.meta.offsets),
        "pairs": len(broker.meta.index._queues),
        "origins": len(core.names.origins) + len(core.names.origins.past),
        "uses of origins": len(core.names.origins.frames),
        "queries": len(core.batches.apps),
        "counted topics": len(counts.topics) + len(counts._queues),
        "counted groups": len(counts.out) + len(counts.dead),
        "reached": len(broker.reach._reached),
        "clients": len(broker.clients.producer_groups()),
        "moved": len(core.moved_at_ms),
        "ends": len(broker.expiring._ends),
        "directories": len(list((data / "store/consumequeue").iterdir())),
    }


async def live(peer: Peer, name: str) -> None:
    """Use a topic, a producer group, a consumer group and a query of this name."""
    properties = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": name}
    header = sending(name, properties, queue_id=0)
    answer = await peer.ask(SEND, header, b"x")
    await peer.ask(END, ending(answer, COMMIT, producer_group=name, topic=name))
    await peer.ask(PULL, pulling(consumer_group=name, topic=name, queue_id=0))
    offset = UpdateOffsetHeader(consumer_group=name, topic=name, queue_id=0, commit_offset=1)
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    batch = DecideBatchHeader(app_id=name, query_id=name, batch_number=0, by="spark")
    await ask(peer, OwnCode.DECIDE_BATCH, batch)


async def test_nothing_is_left_of_names_that_expired(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store=RETENTION) as server:
        broker, peer = server.broker, await Peer.to(server.broker_address)
        await make_topic(server, "filler")

        await fill(peer, "filler", 0)
        await live(peer, "first")
        await later(server, clock, LATER_MS)
        await fill(peer, "filler", 0)
        await server._retain()
        await expire(server)
        await later(server, clock, 2 * DAY_MS)
        before = None
        for turn in range(3):
            for number in range(5):
                await live(peer, f"name-{turn}-{number}")
            await later(server, clock, LATER_MS)
            await fill(peer, "filler", 0)
            await server._retain()
            gone = await expire(server)
            assert [gone[kind] for kind in ("origins", "queries", "groups")] == [5, 5, 5]
            await fill(peer, "filler", 0)
            await later(server, clock, 2 * DAY_MS)
            await fill(peer, "filler", 0)
            await server._retain()
            await expire(server)
            # Files of deleted queues go with the next checkpoints, what is noted with the next run.
            for _ in range(3):
                await broker.writer.alone(lambda store: store.checkpoint())
            await expire(server)
            # Apps are known by their highest number, and origins while the log has them.
            found = kept(server, tmp_path) | {"queries": 0}
            assert before is None or found == before
            before = found
