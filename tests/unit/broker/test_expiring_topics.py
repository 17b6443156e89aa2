"""Topics that expire, and what remains of expired names."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.model.limits_config import DAY_MS
from escrowmq.protocol.native.headers import ListQueuesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.remoting.admin_headers import RouteHeader
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import UpdateOffsetHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.native_peer import ask
from tests.unit.broker.test_delivering import PULL, pulling, shop
from tests.unit.broker.test_expiring import LATER_MS, RETENTION, expire, fill, later
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    half,
    make_topic,
    sending,
    serving,
)


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
        # The topic is unused, but it still holds messages.
        assert await expire(server) == {}
        await server._retain()
        assert await expire(server) == {"topics": 1}
        assert set(server.broker.catalog.topics) == {"by-operator", "in-use"}
        # A topic made again is new, and its queues get numbers that were never used.
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
            await ask(peer, NativeCode.LIST_QUEUES, ListQueuesHeader(topic="streamed,nothing"))
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
        # The wall clock jumps without confirmation; later the kernel confirms the jump.
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
    """Count everything that the broker keeps by name."""
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
        "moved": len(core.carried_at_ms),
        "ends": len(broker.uses._ends),
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
    await ask(peer, NativeCode.DECIDE_BATCH, batch)


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
            # Checkpoints delete files of deleted queues, and the next run drops what was noted.
            for _ in range(3):
                await broker.writer.alone(lambda store: store.checkpoint())
            await expire(server)
            # The number of apps is not compared. Expired origins stay while the log names them.
            found = kept(server, tmp_path) | {"queries": 0}
            assert before is None or found == before
            before = found
