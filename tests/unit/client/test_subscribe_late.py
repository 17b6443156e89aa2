"""``subscribe`` after ``start``: the consumer begins to read the topic at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.consumer import consuming
from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.messages import Received
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from tests.unit.broker.wire import Peer, eventually, make_topic, sending
from tests.unit.client.consumers import ORDERS, SEND, advance, consumer, send, served, stored

STOCK = "stock"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "TRY_AGAIN_S", 0.01)


class Got:
    """A handler that keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: Received) -> None:
        self.bodies.append(message.body)


def is_reading(server: Server, topic: str = ORDERS) -> bool:
    """Return whether the broker knows that the group wants the topic, and holds a pull."""
    group = server.broker.clients.consumers("ship")
    return (
        group is not None
        and topic in group.subscriptions
        and server.broker.pulling.polls.waiting > 0
    )


async def test_an_async_consumer_may_subscribe_after_its_start(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        got = Got()
        async with consumer(server) as ours:
            ours.subscribe(ORDERS)(got)
            await eventually(lambda: got.bodies == [b"1"])
            await eventually(lambda: is_reading(server))
            await send(server, b"2")
            await eventually(lambda: got.bodies == [b"1", b"2"])
        assert stored(server) == 2
        # The subscription remains when the consumer starts again.
        await send(server, b"3")
        async with ours:
            await eventually(lambda: got.bodies == [b"1", b"2", b"3"])


async def test_a_plain_consumer_may_subscribe_after_its_start(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        got = Got()
        ours = Consumer(server.name_address, "ship")

        def work() -> None:
            ours.start()
            ours.subscribe(ORDERS)(got)

        await asyncio.to_thread(work)
        await eventually(lambda: got.bodies == [b"1"])
        await asyncio.to_thread(ours.close)
        assert stored(server) == 1


async def test_a_subscription_during_the_start_is_not_lost(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        got = Got()
        ours = consumer(server)
        starting = asyncio.ensure_future(ours.start())
        await asyncio.sleep(0)
        assert not starting.done()
        ours.subscribe(ORDERS)(got)
        await starting
        await eventually(lambda: got.bodies == [b"1"])
        await ours.close()


async def test_a_loop_that_does_not_run_takes_a_subscription(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        got = Got()

        def work() -> None:
            loop = asyncio.new_event_loop()
            ours = consumer(server)
            loop.run_until_complete(ours.start())
            ours.subscribe(ORDERS)(got)
            loop.run_until_complete(eventually(lambda: got.bodies == [b"1"]))
            loop.run_until_complete(ours.close())
            loop.close()

        await asyncio.to_thread(work)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("is_async_handler", [False, True])
async def test_a_handler_may_subscribe_to_another_topic(
    tmp_path: Path, *, is_plain: bool, is_async_handler: bool
) -> None:
    async with served(tmp_path) as server:
        await make_topic(server, STOCK)
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(STOCK, {"UNIQ_KEY": "s"}, queue_id=0), b"stock")
        await send(server, b"1")
        got = Got()
        kind = Consumer if is_plain else AsyncConsumer
        ours = kind(server.name_address, "ship")

        def on_thread(_message: Received) -> None:
            ours.subscribe(STOCK)(got)

        async def on_loop(_message: Received) -> None:
            ours.subscribe(STOCK)(got)

        ours.subscribe(ORDERS)(on_loop if is_async_handler else on_thread)
        if isinstance(ours, Consumer):
            await asyncio.to_thread(ours.start)
        else:
            await ours.start()
        await eventually(lambda: got.bodies == [b"stock"])
        await eventually(lambda: server.broker.pulling.polls.waiting >= 2)
        if isinstance(ours, Consumer):
            await asyncio.to_thread(ours.close)
        else:
            await ours.close()
        assert stored(server) == 1


async def test_an_illegal_subscription_is_refused_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        async with consumer(server) as ours:
            ours.subscribe(ORDERS)(Got())
            with pytest.raises(RequestRefused, match="already_subscribed"):
                ours.subscribe(ORDERS)(Got())
            with pytest.raises(ProtocolViolation, match="filter_malformed"):
                ours.subscribe(STOCK, tag="||")(Got())
        plain = Consumer(server.name_address, "ship")

        def work() -> None:
            with plain:
                plain.subscribe(ORDERS)(Got())
                with pytest.raises(RequestRefused, match="already_subscribed"):
                    plain.subscribe(ORDERS)(Got())

        await asyncio.to_thread(work)
        # The next start does not include a refused subscription either.
        async with ours:
            pass
        await asyncio.to_thread(plain.start)
        await asyncio.to_thread(plain.close)


async def test_members_share_a_topic_that_both_subscribe_to_late(tmp_path: Path) -> None:
    async with served(tmp_path, queues=4) as server:
        one, two = Got(), Got()
        async with consumer(server) as first, consumer(server) as second:
            first.subscribe(ORDERS)(one)
            second.subscribe(ORDERS)(two)
            await eventually(lambda: len(_places(first)) == len(_places(second)) == 2)
            for queue_id in range(4):
                await send(server, b"%d" % queue_id, queue_id=queue_id)
            await eventually(lambda: len(one.bodies + two.bodies) == 4)
            assert len(one.bodies) == len(two.bodies) == 2


def _places(ours: AsyncConsumer) -> list[object]:
    assert ours._core is not None
    return [place for place in ours._core.places if place.topic == ORDERS]


@pytest.mark.parametrize("broadcast", [False, True])
async def test_other_tags_hold_from_then_on(tmp_path: Path, *, broadcast: bool) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", tag="a")
        got = Got()
        ours = consumer(server, broadcast=broadcast)
        # Each access to a method makes a new object, which is still the same handler.
        ours.subscribe(ORDERS, tag="a")(got.__call__)
        async with ours:
            await eventually(lambda: got.bodies == [b"1"])
            await eventually(lambda: is_reading(server))
            ours.subscribe(ORDERS, tag="a || b")(got.__call__)
            # An open pull with the old tags would skip messages for good.
            await eventually(lambda: _read_tags(ours) == ["a || b"])
            assert _wanted(server) == "a || b"
            await send(server, b"2", tag="b")
            await send(server, b"3", tag="c")
            await send(server, b"4", tag="a")
            await eventually(lambda: got.bodies == [b"1", b"2", b"4"])


def _read_tags(ours: AsyncConsumer) -> list[str]:
    assert ours._core is not None
    readers = ours._core._reading.values()
    return [reader._expression for reader in readers if reader.place.topic == ORDERS]


def _wanted(server: Server) -> str:
    group = server.broker.clients.consumers("ship")
    assert group is not None
    return group.subscriptions[ORDERS].expression


async def test_a_retry_that_waited_for_its_handler_comes_when_there_is_one(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        failing = consumer(server)
        tries: list[int] = []

        @failing.subscribe(ORDERS)
        def fail(message: Received) -> None:
            tries.append(message.retries)
            raise ValueError("not now")

        async with failing:
            await eventually(lambda: server.broker.store.table.end == 1)
        got = Got()
        async with consumer(server) as ours:
            await eventually(lambda: server.broker.pulling.polls.waiting > 0)
            advance(server, 10_000)
            await eventually(lambda: ours._core is not None and ours._core.unhandled)
            ours.subscribe(ORDERS)(got)
            await eventually(lambda: got.bodies == [b"1"])
