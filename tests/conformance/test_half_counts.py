"""The metric ``rocketmq_half_messages``: what it counts after its topic was removed."""

from __future__ import annotations

from pathlib import Path

from tests.unit.broker.test_http import watched
from tests.unit.broker.test_metrics import ORDERS, scrape
from tests.unit.broker.wire import END, ROLLBACK, SEND, Peer, ending, half


async def test_halves_of_a_removed_topic_count_until_they_are_decided(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        held = [await peer.ask(SEND, half(key), b"x") for key in ("t1", "t2")]
        assert (await scrape(server)).value("rocketmq_half_messages", **ORDERS) == 2
        broker = server.broker
        await broker.writer.submit(broker.topics.remove("orders", by="me", is_forced=True))
        assert (await scrape(server)).value("rocketmq_half_messages", **ORDERS) == 2
        for answer in held:
            await peer.ask(END, ending(answer, ROLLBACK))
        assert (await scrape(server)).sum("rocketmq_half_messages") == 0
