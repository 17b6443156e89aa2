"""Plain and async producers: their common behavior and their differences."""

from __future__ import annotations

import asyncio
import gc
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.checks import ASKED_MAX
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half
from tests.unit.broker.wire import eventually, serving
from tests.unit.client.test_producing import bodies


async def test_a_plain_producer_starts_when_it_is_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:

        def work() -> None:
            producer = Producer(server.name_address, "pay")
            assert repr(producer) == f"<Producer {server.name_address}, group='pay'>"
            sent = producer.send("orders", "1", key="42", tag="paid", properties={"a": "b"})
            assert sent.topic == "orders"
            assert "started" in repr(producer)
            many = [Message(topic="orders", body=b"%d" % number) for number in (2, 3)]
            assert len(producer.send_many(many)) == 2
            producer.send(Message(topic="orders", body=lambda: b"4"))
            producer.close()
            producer.close()
            with pytest.raises(Unavailable, match="client_closed"):
                producer.send("orders")

        await asyncio.to_thread(work)
        assert sorted(bodies(server)) == [b"1", b"2", b"3", b"4"]


async def test_the_first_error_of_many_is_told_when_all_were_tried(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, AsyncProducer(server.name_address, "pay") as producer:
        messages = [
            Message(topic="orders", body=b"1"),
            Message(topic="no blanks, please"),
            Message(topic="orders", body=b"2"),
        ]
        with pytest.raises(RequestRefused, match="topic_illegal"):
            await producer.send_many(messages)
        assert sorted(bodies(server)) == [b"1", b"2"]


def test_a_producer_with_wrong_arguments_is_refused() -> None:
    with pytest.raises(RequestRefused, match="group_illegal"):
        Producer("127.0.0.1:9876", "")
    with pytest.raises(RequestRefused, match="group_illegal"):
        Producer("127.0.0.1:9876", None)  # type: ignore[arg-type]
    for address in ("nowhere", "http://127.0.0.1:9876", None, 9876, b"127.0.0.1:9876", [None]):
        with pytest.raises(RequestRefused, match="address_illegal"):
            Producer(address, "pay")  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match=r"settings are timeout_s, .*producer\.timeout'"):
        Producer("127.0.0.1:9876", "pay", timeout=3)
    for seconds in (-3, "3", None):
        with pytest.raises(RequestRefused, match=r"must be from 0\.001 .*producer\.timeout_s'"):
            Producer("127.0.0.1:9876", "pay", timeout_s=seconds)
    with pytest.raises(RequestRefused, match="must be a ProducerConfig"):
        Producer("127.0.0.1:9876", "pay", config={"timeout_s": 3})  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match=r"producer\.ledger"):
        Producer("127.0.0.1:9876", "pay", ledger="sqlite:///shop.db")  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="bad_config"):
        Producer("127.0.0.1:9876", "pay", listener=Listener(), checker=lambda _: None)


async def test_a_producer_without_a_listener_cannot_send_in_a_transaction() -> None:
    """No broker is there: a request would fail with another error."""
    producer = Producer("127.0.0.1:1", "pay")
    with pytest.raises(RequestRefused, match="producer_without_listener"):
        producer.send_in_transaction(Message(topic="orders", body=b"1"))
    again = AsyncProducer("127.0.0.1:1", "pay")
    with pytest.raises(RequestRefused, match="producer_without_listener"):
        await again.send_in_transaction(Message(topic="orders", body=b"1"))


async def test_a_broker_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        name_port, port = (
            int(address.rpartition(":")[2])
            for address in (server.name_address, server.broker_address)
        )
    producer = AsyncProducer(server.name_address, "pay", timeout_s=0.1)
    with pytest.raises(Unavailable, match="name_server_unreachable"):
        await producer.send("orders", b"1")
    producer = AsyncProducer(server.name_address, "pay")
    sending = asyncio.ensure_future(producer.send("orders", b"2"))
    async with serving(tmp_path, broker={"name_port": name_port, "port": port}) as server:
        await sending
        assert bodies(server) == [b"2"]
        await producer.close()


async def test_halves_can_be_held_and_ended_by_hand(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:

        def work() -> None:
            with Producer(server.name_address, "pay") as producer:
                first = producer.send_half("orders", b"1", key="1")
                second = producer.send_half(Message(topic="orders", body=b"2"))
                assert producer.end(first, Resolution.COMMIT).state == "committed"
                assert producer.end(second, Resolution.ROLLBACK).state == "rolled_back"
                with pytest.raises(RequestRefused, match="already_rolled_back"):
                    producer.end(second, Resolution.COMMIT)

        await asyncio.to_thread(work)
        assert bodies(server) == [b"1"]


async def test_a_transaction_can_be_begun_filled_and_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:

        def work() -> None:
            with Producer(server.name_address, "pay") as producer:
                transaction = producer.begin()
                transaction.send("orders", b"1")
                transaction.send("points", b"2")
                transaction.send("orders", b"3")
                assert "open, 3 messages" in repr(transaction)
                assert bodies(server) == []
                decided = transaction.commit()
                assert decided is not None
                assert decided.state == "committed"
                with pytest.raises(RequestRefused, match="transaction_over"):
                    transaction.send("orders")
                assert producer.begin().rollback() is None
                with producer.begin() as transaction:
                    transaction.send("orders", b"5")

        await asyncio.to_thread(work)
        assert sorted(bodies(server)) == [b"1", b"3", b"5"]
        assert bodies(server, "points") == [b"2"]
        async with AsyncProducer(server.name_address, "pay") as producer:
            async with producer.begin() as transaction:
                await transaction.send("carts", b"6")
                await transaction.send("carts", b"7")
            held = await producer.send_half("carts", b"8")
            await producer.end(held, Resolution.ROLLBACK)
            begun = producer.begin()
            await begun.send("carts", b"9")
            await begun.rollback()
            await producer.begin().commit()
            assert sorted(bodies(server, "carts")) == [b"6", b"7"]


class Listener:
    """Listener that returns or raises `arg`, and answers checks with `known` or an error."""

    def __init__(self, known: Resolution | None = None) -> None:
        self.known = known

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        del message
        if isinstance(arg, Exception):
            raise arg
        assert arg is None or isinstance(arg, Resolution)
        return arg

    def check_local_transaction(self, message: Received) -> Resolution | None:
        if message.body == b"bad":
            raise ValueError("odd")
        return self.known


async def test_a_listener_runs_the_local_transaction_and_is_asked_about_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        producer = Producer(server.name_address, "pay", listener=Listener(Resolution.COMMIT))

        def work() -> None:
            def send(body: str, arg: object = None) -> Resolution:
                done = producer.send_in_transaction(Message(topic="orders", body=body), arg)
                assert (done.decided is None) == (done.resolution is Resolution.UNKNOWN)
                assert done.error is arg or done.error is None
                return done.resolution

            assert send("in", Resolution.COMMIT) is Resolution.COMMIT
            assert send("out", Resolution.ROLLBACK) is Resolution.ROLLBACK
            assert send("later") is Resolution.UNKNOWN
            assert send("bad", ValueError("odd")) is Resolution.UNKNOWN

        await asyncio.to_thread(work)
        assert bodies(server) == [b"in"]
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        await eventually(lambda: sorted(bodies(server)) == [b"in", b"later"])
        await asyncio.to_thread(producer.close)
        assert [half.state for half in halves(server)].count(State.PREPARED) == 1


class AsyncListener:
    async def execute_local_transaction(self, _message: Message, arg: object) -> Resolution | None:
        assert arg is None or isinstance(arg, Resolution)
        return arg

    async def check_local_transaction(self, _message: Received) -> Resolution | None:
        return Resolution.COMMIT


async def test_a_listener_may_be_async(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        listener = AsyncListener()
        async with AsyncProducer(server.name_address, "pay", listener=listener) as producer:  # type: ignore[arg-type]
            for body, arg in ((b"1", Resolution.COMMIT), (b"2", None), (b"3", Resolution.ROLLBACK)):
                await producer.send_in_transaction(Message(topic="orders", body=body), arg)
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: sorted(bodies(server)) == [b"1", b"2"])
        plain = Producer(server.name_address, "pay", listener=listener)  # type: ignore[arg-type]
        with pytest.raises(RequestRefused, match="listener_needs_await"):
            plain.send_in_transaction(Message(topic="orders"))


async def test_an_odd_answer_is_unknown(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        asked: list[Received] = []

        def answer(message: Received) -> Resolution:
            asked.append(message)
            return "commit"  # type: ignore[return-value]

        async with AsyncProducer(server.name_address, "pay", checker=answer) as producer:
            await producer.send_half("orders", b"1", key="42")
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: asked)
        assert [half.state for half in halves(server)] == [State.PREPARED]
        assert asked[0].key == "42"


async def test_a_check_that_hangs_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.client.producer.checks.ANSWER_S", 0.05)
    async with serving(tmp_path) as server:
        never = asyncio.Event()

        async def hang(message: Received) -> Resolution:
            if message.body == b"hangs":
                await never.wait()
            return Resolution.COMMIT

        async with AsyncProducer(server.name_address, "pay", checker=hang) as producer:
            for body in [b"hangs"] * (ASKED_MAX - 1) + [b"1"]:
                await producer.send_half("orders", body)
            await eventually(lambda: server.broker.clients.producers("pay"))

            def is_answered() -> bool:
                check_all(server)
                return bodies(server) == [b"1"]

            await eventually(is_answered)
            never.set()


async def test_checks_run_in_threads_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        go_on, threads = threading.Event(), []

        def block(_message: Received) -> Resolution:
            threads.append(threading.current_thread().name)
            assert go_on.wait(10)
            return Resolution.COMMIT

        async with AsyncProducer(server.name_address, "pay", checker=block) as producer:
            for body in (b"1", b"2"):
                await producer.send_half("orders", body)
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            # Both run at once, and the producer sends meanwhile.
            await eventually(lambda: len(threads) == 2)
            await producer.send("orders", b"meanwhile")
            assert bodies(server) == [b"meanwhile"]
            go_on.set()
            await eventually(lambda: sorted(bodies(server)) == [b"1", b"2", b"meanwhile"])
        assert all(name.startswith("escrowmq-check") for name in threads)


async def test_a_forked_child_goes_on_with_connections_of_its_own(tmp_path: Path) -> None:
    program = """
        import os, sys
        from escrowmq.client.producer.producer import Producer
        producer = Producer(sys.argv[1], "pay")
        producer.send("orders", "parent")
        child = os.fork()
        producer.send("orders", "child" if child == 0 else "parent again")
        if child == 0:
            # Nothing of the parent's may be closed by this end.
            sys.exit(0)
        os.waitpid(child, 0)
        producer.send("orders", "parent at last")
    """
    async with serving(tmp_path) as server:
        await run(program, server)
        assert set(bodies(server)) == {b"parent", b"child", b"parent again", b"parent at last"}


async def test_an_open_producer_is_closed_at_the_end_of_the_program(tmp_path: Path) -> None:
    program = """
        import sys
        from escrowmq.client.messages.outgoing import Resolution
        from escrowmq.client.producer.producer import Producer
        producer = Producer(sys.argv[1], "pay", checker=lambda message: Resolution.UNKNOWN)
        producer.send("orders", "1")
    """
    async with serving(tmp_path) as server:
        with listening(server) as heard:
            await run(program, server)
        assert RequestCode.UNREGISTER_CLIENT in heard
        assert bodies(server) == [b"1"]


async def run(program: str, server: Server) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), server.name_address
    )
    async with asyncio.timeout(30):
        assert await process.wait() == 0


async def test_a_producer_without_references_leaves_its_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:

        def make() -> Producer:
            producer = Producer(server.name_address, "pay", checker=lambda _: None)
            producer.start()
            return producer

        producer = await asyncio.to_thread(make)
        await eventually(lambda: server.broker.clients.producers("pay"))
        del producer
        gc.collect()
        await eventually(lambda: not server.broker.clients.producers("pay"))
        await eventually(lambda: not server._connections)


@contextmanager
def listening(server: Server) -> Iterator[list[int]]:
    handle, codes = server.broker.handle, []

    def heard(connection: ClientConnection, frame: RemotingFrame) -> None:
        codes.append(frame.code)
        handle(connection, frame)

    server.broker.handle = heard  # type: ignore[method-assign]
    try:
        yield codes
    finally:
        server.broker.handle = handle  # type: ignore[method-assign]


def halves(server: Server) -> list[Half]:
    core = server.broker.store.core
    return list(filter(None, map(core.half, range(core.table.end))))


def check_all(server: Server) -> None:
    for half in halves(server):
        if half.state is State.PREPARED:
            verdict = Verdict(
                half_offset=half.half_offset,
                kind=VerdictKind.ASK,
                state=State.PREPARED,
                checks_sent=half.checks_sent,
            )
            server.broker.checking.obey([verdict], lambda _outcomes: None)
