"""Set up a broker with a topic, send messages to it, and make consumers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from escrowmq.broker.server import Server
from escrowmq.client.consumer.consumer import AsyncConsumer
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.wire import Peer, make_topic, sending, serving

SEND = 310
ORDERS = "orders"


async def send(server: Server, *bodies: bytes, queue_id: int = 0, tag: str = "") -> None:
    peer = await Peer.to(server.broker_address)
    for body in bodies:
        properties = {"UNIQ_KEY": f"id-{body.decode()}", **({"TAGS": tag} if tag else {})}
        header = sending(ORDERS, properties, queue_id=queue_id)
        assert (await peer.ask(SEND, header, body)).code == 0


@asynccontextmanager
async def served(path: Path, queues: int = 1) -> AsyncIterator[Server]:
    async with serving(path) as server:
        await make_topic(server, ORDERS, queues)
        yield server


def consumer(server: Server, **settings: Any) -> AsyncConsumer:  # noqa: ANN401
    return AsyncConsumer(server.name_address, "ship", **settings)


def stored(server: Server, queue_id: int = 0) -> int | None:
    return server.broker.meta.offsets.get(("ship", ORDERS, queue_id))


def advance(server: Server, ms: int) -> None:
    clock = server._clock
    assert isinstance(clock, ManualClock)
    clock.advance(ms=ms)
