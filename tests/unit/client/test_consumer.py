from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from escrowmq.client.consumer import consuming
from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.handling import GiveUp, RetryLater
from escrowmq.client.messages.messages import Received
from escrowmq.model.errors import RequestRefused
from tests.unit.broker.wire import Peer, eventually, sending
from tests.unit.client.consumers import ORDERS, SEND, advance, consumer, send, served, stored


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "TRY_AGAIN_S", 0.01)


async def test_a_handler_gets_each_message_and_the_group_goes_on_from_there(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", b"2", b"3")
        got: list[bytes] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        async def ship(message: Received) -> None:
            got.append(message.body)

        async with ours:
            await eventually(lambda: got == [b"1", b"2", b"3"])
        assert stored(server) == 3
        await send(server, b"4")
        async with ours:
            await eventually(lambda: got == [b"1", b"2", b"3", b"4"])


async def test_messages_that_come_later_wake_the_handler(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        got: list[bytes] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            got.append(message.body)

        async with ours:
            await eventually(lambda: server.broker.pulling.polls.waiting > 0)
            await send(server, b"1")
            await eventually(lambda: got == [b"1"])


async def test_a_new_group_may_begin_at_the_end(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"old")
        got: list[bytes] = []
        ours = consumer(server, start="last")
        ours.subscribe(ORDERS)(lambda message: got.append(message.body))
        async with ours:
            await eventually(lambda: server.broker.pulling.polls.waiting > 0)
            await send(server, b"new")
            await eventually(lambda: got == [b"new"])


async def test_only_wanted_tags_are_handled(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        # "Aa" and "BB" have the same hash code, so the broker cannot tell them apart.
        await send(server, b"1", tag="Aa")
        await send(server, b"2", tag="BB")
        await send(server, b"3", tag="other")
        await send(server, b"4", tag="Aa")
        got: list[bytes] = []
        ours = consumer(server)
        ours.subscribe(ORDERS, tag="Aa || none")(lambda message: got.append(message.body))
        async with ours:
            await eventually(lambda: got == [b"1", b"4"])
        assert stored(server) == 4


async def test_a_message_whose_handler_raises_comes_again(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        tries: list[tuple[int, str]] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            tries.append((message.retries, message.topic))
            if message.retries == 0:
                raise ValueError("not now")

        async with ours:
            await eventually(lambda: len(tries) == 1)
            await eventually(lambda: server.broker.store.table.end == 1)
            advance(server, 10_000)
            await eventually(lambda: tries == [(0, ORDERS), (1, ORDERS)])


async def test_a_handler_chooses_when_its_message_comes_again(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        tries: list[int] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            tries.append(message.retries)
            if message.retries == 0:
                raise RetryLater(after_ms=4_000)

        async with ours:
            await eventually(lambda: server.broker.store.table.end == 1)
            advance(server, 5_000)
            await eventually(lambda: tries == [0, 1])


async def test_the_last_try_leaves_a_dead_letter(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", b"2")
        ours = consumer(server, retries_max=0)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            if message.body == b"1":
                raise GiveUp
            raise ValueError("never")

        def dead() -> int:
            queue = server.broker.reader.queue("%DLQ%ship", 0)
            return queue.end if queue else 0

        async with ours:
            await eventually(lambda: dead() == 2)


async def test_a_handler_that_hangs_does_not_hold_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"hang", b"2")
        got: list[bytes] = []
        ours = consumer(server, concurrency=1, handler_timeout_s=0.05)

        @ours.subscribe(ORDERS)
        async def ship(message: Received) -> None:
            if message.body == b"hang":
                await asyncio.Event().wait()
            got.append(message.body)

        async with ours:
            await eventually(lambda: got == [b"2"])
            await eventually(lambda: server.broker.store.table.end == 1)


async def test_no_more_handlers_run_than_are_allowed(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, *(b"%d" % number for number in range(20)))
        running, most = 0, 0
        lock = threading.Lock()
        ours = consumer(server, concurrency=3)
        done: list[bytes] = []

        @ours.subscribe(ORDERS)
        async def ship(message: Received) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            done.append(message.body)

        async with ours:
            await eventually(lambda: len(done) == 20)
        assert most <= 3


async def test_a_stop_waits_for_the_handlers(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        begun, may_end = threading.Event(), threading.Event()
        ended: list[bytes] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            begun.set()
            may_end.wait(10)
            ended.append(message.body)

        await ours.start()
        await eventually(begun.is_set)
        stopping = asyncio.ensure_future(ours.close())
        await asyncio.sleep(0)
        may_end.set()
        await stopping
        assert ended == [b"1"]
        assert stored(server) == 1


async def test_a_message_that_a_stop_does_not_wait_for_comes_again(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        begun = asyncio.Event()
        ours = consumer(server, stop_s=0.01)

        @ours.subscribe(ORDERS)
        async def ship(_message: Received) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with ours:
            await begun.wait()
        assert stored(server) == 0


async def test_a_loop_consumes_a_message_when_it_asks_for_the_next(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", b"2", b"3")
        ours = consumer(server)
        async with ours:
            async with aclosing(ours.messages(ORDERS)) as messages:  # type: ignore[type-var]
                got = [(await anext(messages)).body for _ in range(2)]
            assert got == [b"1", b"2"]
            assert stored(server) == 1
            # The message at which the loop stopped comes again.
            async with aclosing(ours.messages(ORDERS)) as messages:  # type: ignore[type-var]
                assert (await anext(messages)).body == b"2"


async def test_a_consumer_with_wrong_arguments_is_refused() -> None:
    with pytest.raises(RequestRefused, match="bad_config"):
        AsyncConsumer("127.0.0.1:9876", "ship", concurrency=0)
    with pytest.raises(RequestRefused, match="bad_config"):
        AsyncConsumer("127.0.0.1:9876", "ship", broadcast=True, ordered=True)
    with pytest.raises(RequestRefused, match="bad_config"):
        AsyncConsumer("127.0.0.1:9876", "ship", speed="high")
    with pytest.raises(RequestRefused, match=r"must be one of first, last, time.*consumer\.start"):
        AsyncConsumer("127.0.0.1:9876", "ship", start="latest")
    assert AsyncConsumer("127.0.0.1:9876", "ship", start="last").config.start == "last"
    with pytest.raises(RequestRefused, match="consumer_not_started"):
        await AsyncConsumer("127.0.0.1:9876", "ship").seek(ORDERS, offset=0)


async def test_an_unreadable_body_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        header = sending(ORDERS, queue_id=0, sys_flag=1)
        assert (await peer.ask(SEND, header, b"no zlib")).code == 0
        ours = consumer(server)
        ours.subscribe(ORDERS)(lambda _: pytest.fail("it cannot be read"))

        def dead() -> bool:
            queue = server.broker.reader.queue("%DLQ%ship", 0)
            return queue is not None and queue.end == 1

        async with ours:
            await eventually(dead)


async def test_a_plain_consumer_in_a_program_without_a_loop(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1", b"2", b"3")

        def program() -> list[bytes]:
            got: list[bytes] = []
            ours = Consumer(server.name_address, "ship")
            ours.subscribe(ORDERS)(lambda message: got.append(message.body))
            with ours:
                while len(got) < 3:
                    threading.Event().wait(0.001)
            return got

        def loop() -> list[bytes]:
            with Consumer(server.name_address, "others") as ours:
                bodies = []
                for message in ours.messages(ORDERS, timeout_s=20):
                    bodies.append(message.body)
                    if len(bodies) == 3:
                        break
                return bodies

        assert await asyncio.to_thread(program) == [b"1", b"2", b"3"]
        assert await asyncio.to_thread(loop) == [b"1", b"2", b"3"]


async def test_a_loop_that_is_left_while_its_consumer_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, queues=4) as server:
        await send(server, b"1")

        def program() -> list[bytes]:
            with Consumer(server.name_address, "ship") as ours:
                messages = ours.messages(ORDERS, timeout_s=0.2)
                return [message.body for message in messages]

        assert await asyncio.to_thread(program) == [b"1"]
        assert stored(server) == 1
        gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_close_is_the_word_for_both_kinds_and_stop_warns_its_caller(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        ours = consumer(server)
        await ours.start()
        await ours.close()
        await ours.close()
        await ours.start()
        with pytest.warns(DeprecationWarning, match=r"AsyncConsumer\.stop.*close") as warned:
            await ours.stop()
        assert [one.filename for one in warned] == [__file__]

        def program() -> list[str]:
            plain = Consumer(server.name_address, "plain")
            plain.start()
            plain.close()
            plain.start()
            with pytest.warns(DeprecationWarning, match=r"Consumer\.stop.*close") as warned:
                plain.stop()
            return [one.filename for one in warned]

        assert await asyncio.to_thread(program) == [__file__]
        assert server.broker.clients.consumer_groups() == []
