"""A listener's ``execute`` sees the transaction id that its ``check`` is asked about."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received, SendStatus, received
from escrowmq.client.producer.listener import Executed
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import TRANSACTION_ID
from tests.unit.broker.wire import eventually, serving, visible
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import check_all


class Bookkeeper:
    """Listener that records the ids of its transactions, and looks them up in checks."""

    def __init__(self) -> None:
        self.books: list[str] = []
        #: The property ``__transactionId__``, as each method saw it.
        self.executed: list[str] = []
        self.checked: list[str] = []

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        self.books.append(message.transaction_id)
        self.executed.append(message.properties[TRANSACTION_ID])
        assert arg is None or isinstance(arg, Resolution)
        return arg

    def check_local_transaction(self, message: Received) -> Resolution:
        self.checked.append(message.properties[TRANSACTION_ID])
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
        # RocketMQ's transaction id is the message's id.
        assert keeper.executed == [done.message_id if is_apache else done.transaction_id]
        assert keeper.checked == keeper.executed
        await asyncio.to_thread(producer.close)
        async_keeper = AsyncBookkeeper()
        async with AsyncProducer(server.name_address, "ship", listener=async_keeper) as other:  # type: ignore[arg-type]
            again = await other.send_in_transaction(Message(topic="orders", body=b"2"))
            assert async_keeper.books == [again.transaction_id]
            await commits(server, 2, "ship")
            assert async_keeper.checked == async_keeper.executed


async def commits(server: Server, count: int = 1, group: str = "pay") -> None:
    await eventually(lambda: server.broker.clients.producers(group))
    check_all(server)
    await eventually(
        lambda: sum(len(visible(server, "orders", queue)) for queue in range(8)) == count
    )


@pytest.mark.parametrize("is_apache", [False, True])
async def test_a_message_can_be_sent_again_with_the_id_of_its_new_transaction(
    tmp_path: Path, *, is_apache: bool
) -> None:
    shared = {"colour": "green"}
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        keeper = AsyncBookkeeper()
        async with AsyncProducer(server.name_address, "pay", listener=keeper) as producer:  # type: ignore[arg-type]
            message = Message(topic="orders", body=b"1", key="k", properties=shared)
            for _ in range(2):
                await producer.send_in_transaction(message, Resolution.COMMIT)
            # A part of no transaction has no transaction id.
            sent = await producer.send(message)
        assert len(set(keeper.books)) == 2
        assert shared == {"colour": "green"}, "it may belong to other messages, too"
        stored = [received(one, "") for one in visible(server, "orders", sent.queue_id)]
        assert [one.transaction_id for one in stored] == [*keeper.books, ""]
        assert [one.properties["colour"] for one in stored] == ["green"] * 3
        assert [one.properties.get(TRANSACTION_ID) for one in stored] == [*keeper.executed, None]


async def test_a_message_without_any_properties_gets_the_id(tmp_path: Path) -> None:
    """None is no Mapping, but ``send`` takes it."""
    async with serving(tmp_path) as server:
        keeper = AsyncBookkeeper()
        async with AsyncProducer(server.name_address, "pay", listener=keeper) as producer:  # type: ignore[arg-type]
            message = Message(topic="orders", body=b"1", properties=None, check_after_s=9)  # type: ignore[arg-type]
            done = await producer.send_in_transaction(message, Resolution.COMMIT)
        assert keeper.executed == [done.transaction_id]


@pytest.mark.parametrize("is_apache", [False, True])
async def test_executed_tells_where_the_half_message_is(tmp_path: Path, *, is_apache: bool) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)

        def work() -> Executed:
            with Producer(server.name_address, "pay", listener=Bookkeeper()) as producer:
                return producer.send_in_transaction(
                    Message(topic="orders", body=b"0"), Resolution.COMMIT
                )

        done = [await asyncio.to_thread(work)]
        async with AsyncProducer(
            server.name_address,
            "pay",
            listener=AsyncBookkeeper(),  # type: ignore[arg-type]
        ) as producer:
            message = Message(topic="orders", body=b"1")
            done.append(await producer.send_in_transaction(message, Resolution.COMMIT))
        for half_offset, one in enumerate(done):
            assert one.topic == "orders"
            assert one.broker_name == server.broker.identity.name
            assert one.half_offset == half_offset
            assert one.status is SendStatus.SEND_OK
            assert (one.resolution, one.error) == (Resolution.COMMIT, None)
            assert one.decided is not None
            queue = visible(server, "orders", one.queue_id)
            (stored,) = [found for found in queue if found.body == b"%d" % half_offset]
            told = received(stored, "")
            assert (told.message_id, told.transaction_id) == (one.message_id, one.transaction_id)
