from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.client.consumer import consuming
from escrowmq.client.consumer.consumer import AsyncConsumer
from escrowmq.client.messages.messages import Received
from escrowmq.model.errors import RequestRefused
from tests.unit.broker.wire import T0, eventually
from tests.unit.client.consumers import ORDERS, advance, consumer, send, served, stored


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "TRY_AGAIN_S", 0.01)


async def test_two_members_share_the_queues_and_the_survivor_takes_all(tmp_path: Path) -> None:
    async with served(tmp_path, queues=4) as server:
        first, second = consumer(server), consumer(server)
        got: dict[str, list[bytes]] = {"first": [], "second": []}
        first.subscribe(ORDERS)(lambda message: got["first"].append(message.body))
        second.subscribe(ORDERS)(lambda message: got["second"].append(message.body))

        def queues(one: AsyncConsumer) -> int:
            core = one._core
            assert core is not None
            return sum(place.topic == ORDERS for place in core.places)

        async with first:
            await eventually(lambda: queues(first) == 4)
            async with second:
                await eventually(lambda: (queues(first), queues(second)) == (2, 2))
                for queue_id in range(4):
                    await send(server, b"%d" % queue_id, queue_id=queue_id)
                await eventually(lambda: sum(map(len, got.values())) == 4)
                assert {len(one) for one in got.values()} == {2}
            await eventually(lambda: queues(first) == 4)


async def test_everybody_gets_what_is_broadcast(tmp_path: Path) -> None:
    async with served(tmp_path, queues=2) as server:
        got: list[tuple[int, bytes]] = []
        ours = [consumer(server, broadcast=True) for _ in range(2)]
        for number, one in enumerate(ours):
            one.subscribe(ORDERS)(lambda message, number=number: got.append((number, message.body)))
        async with ours[0], ours[1]:
            await send(server, b"1")
            await eventually(lambda: sorted(got) == [(0, b"1"), (1, b"1")])
        assert stored(server) is None


async def test_ordered_messages_wait_for_the_one_before(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", b"2", b"3")
        got: list[bytes] = []
        failures = 2
        ours = consumer(server, ordered=True)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            nonlocal failures
            got.append(message.body)
            if message.body == b"2" and failures:
                failures -= 1
                raise ValueError("again")

        async with ours:
            await eventually(lambda: got == [b"1", b"2", b"2", b"2", b"3"])
        assert stored(server) == 3


async def test_a_queue_is_read_in_order_by_one_member_at_a_time(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        ours, other = consumer(server, ordered=True), consumer(server, ordered=True)
        got: list[str] = []
        ours.subscribe(ORDERS)(lambda _: got.append("ours"))
        other.subscribe(ORDERS)(lambda _: got.append("other"))
        async with ours:
            await send(server, b"1")
            await eventually(lambda: got == ["ours"])
            async with other:
                await send(server, b"2")
                await eventually(lambda: len(got) == 2)


async def test_a_group_is_sent_back_in_time(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        advance(server, 1_000)
        await send(server, b"2")
        got: list[bytes] = []
        ours = consumer(server)
        ours.subscribe(ORDERS)(lambda message: got.append(message.body))
        async with ours:
            await eventually(lambda: got == [b"1", b"2"])
            await ours.seek(ORDERS, at_ms=T0 + 500)
            await eventually(lambda: got == [b"1", b"2", b"2"])
            await ours.seek(ORDERS, offset=0)
            await eventually(lambda: got == [b"1", b"2", b"2", b"1", b"2"])
            with pytest.raises(RequestRefused, match="seek_illegal"):
                await ours.seek(ORDERS)
