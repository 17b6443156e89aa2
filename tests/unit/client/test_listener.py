"""A listener's ``execute`` sees the transaction id that its ``check`` is asked about."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received, SendStatus
from escrowmq.client.producer.listener import Executed
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from tests.unit.broker.wire import eventually, serving, visible
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import check_all


class Bookkeeper:
    """Listener that records the ids of its transactions, and looks them up in checks."""

    def __init__(self) -> None:
        self.books: list[str] = []

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        self.books.append(message.transaction_id)
        assert arg is None or isinstance(arg, Resolution)
        return arg

    def check_local_transaction(self, message: Received) -> Resolution:
        is_known = message.transaction_id in self.books
        return Resolution.COMMIT if is_known else Resolution.ROLLBACK


class AsyncBookkeeper(Bookkeeper):
    async def execute_local_transaction(  # type: ignore[override]
        self, message: Message, arg: object
    ) -> Resolution | None:
        return super().execute_local_transaction(message, arg)


@pytest.mark.parametrize("is_apache", [False, True])
async def test_execute_sees_the_transaction_id_that_check_is_asked_about(
    tmp_path: Path, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        keeper = Bookkeeper()
        producer = Producer(server.name_address, "pay", listener=keeper)
        # The message has the id of an earlier transaction, which the new id replaces.
        message = Message(topic="orders", body=b"1", transaction_id="another")
        done = await asyncio.to_thread(producer.send_in_transaction, message)
        assert keeper.books == [done.transaction_id] == [message.transaction_id]
        await commits(server)
        await asyncio.to_thread(producer.close)
        async_keeper = AsyncBookkeeper()
        async with AsyncProducer(server.name_address, "ship", listener=async_keeper) as other:  # type: ignore[arg-type]
            again = await other.send_in_transaction(Message(topic="orders", body=b"2"))
            assert async_keeper.books == [again.transaction_id]
            await commits(server, 2, "ship")


async def commits(server: Server, count: int = 1, group: str = "pay") -> None:
    await eventually(lambda: server.broker.clients.producers(group))
    check_all(server)
    await eventually(
        lambda: sum(len(visible(server, "orders", queue)) for queue in range(8)) == count
    )


@pytest.mark.parametrize("is_apache", [False, True])
async def test_executed_tells_where_the_half_message_is(tmp_path: Path, *, is_apache: bool) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        keeper = Bookkeeper()

        def work() -> list[Executed]:
            with Producer(server.name_address, "pay", listener=keeper) as producer:
                return [
                    producer.send_in_transaction(
                        Message(topic="orders", body=b"%d" % number), Resolution.COMMIT
                    )
                    for number in range(2)
                ]

        for half_offset, done in enumerate(await asyncio.to_thread(work)):
            assert done.topic == "orders"
            assert done.broker_name == server.broker.identity.name
            assert done.half_offset == half_offset
            assert done.status is SendStatus.SEND_OK
            (stored,) = visible(server, "orders", done.queue_id)
            assert stored.body == b"%d" % half_offset
