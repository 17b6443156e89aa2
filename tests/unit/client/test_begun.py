"""``begin()``: the caller decides, and an exception in the block decides nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from escrowmq.client.messages.messages import Received
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.states import State
from tests.unit.broker.wire import eventually, serving
from tests.unit.client.test_producer import check_all, halves
from tests.unit.client.test_producing import bodies


class Order:
    """A local transaction, and a check that looks up whether it committed."""

    def __init__(self) -> None:
        self.is_committed = False

    def check(self, _message: Received) -> Resolution:
        return Resolution.COMMIT if self.is_committed else Resolution.ROLLBACK


async def test_an_exception_after_the_local_commit_leaves_the_decision_to_the_check(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        order = Order()
        producer = Producer(server.name_address, "pay", checker=order.check)

        def work() -> None:
            with suppress(ZeroDivisionError), producer.begin() as transaction:
                transaction.send("orders", b"1")
                order.is_committed = True
                1 / 0  # noqa: B018

        await asyncio.to_thread(work)
        assert [half.state for half in halves(server)] == [State.PREPARED]
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        await eventually(lambda: bodies(server) == [b"1"])
        await asyncio.to_thread(producer.close)


async def test_an_async_exception_after_the_local_commit_leaves_the_decision_to_the_check(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        order = Order()
        async with AsyncProducer(server.name_address, "pay", checker=order.check) as producer:
            with suppress(ZeroDivisionError):
                async with producer.begin() as transaction:
                    await transaction.send("orders", b"1")
                    order.is_committed = True
                    1 / 0  # noqa: B018
            assert [half.state for half in halves(server)] == [State.PREPARED]
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: bodies(server) == [b"1"])


async def test_a_cancelled_block_leaves_the_decision_to_the_check(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        order = Order()
        async with AsyncProducer(server.name_address, "pay", checker=order.check) as producer:
            held, never = asyncio.Event(), asyncio.Event()

            async def work() -> None:
                async with producer.begin() as transaction:
                    await transaction.send("orders", b"1")
                    held.set()
                    await never.wait()

            working = asyncio.ensure_future(work())
            await held.wait()
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            assert [half.state for half in halves(server)] == [State.PREPARED]
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: [half.state for half in halves(server)] == [State.ROLLED_BACK])


async def test_a_rollback_that_the_caller_asks_for_is_sent_also_after_an_exception(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:

        def work() -> None:
            with Producer(server.name_address, "pay") as producer:
                inside = producer.begin()
                with suppress(ZeroDivisionError), inside:
                    inside.send("orders", b"1")
                    inside.rollback()
                    1 / 0  # noqa: B018
                after = producer.begin()
                try:
                    with after:
                        after.send("orders", b"2")
                        1 / 0  # noqa: B018
                except ZeroDivisionError:
                    assert "over" in repr(after)
                    after.rollback()

        await asyncio.to_thread(work)
        assert [half.state for half in halves(server)] == [State.ROLLED_BACK] * 2
