from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.server import Server
from escrowmq.client.config import ProducerConfig
from escrowmq.client.messages.message_ids import new_transaction_id
from escrowmq.client.messages.messages import Message
from escrowmq.client.messages.outgoing import HeldTransaction
from escrowmq.client.producer.check_answers import Check, Checker
from escrowmq.client.producer.producing import Producing
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from tests.unit.broker.wire import eventually, make_topic, serving, visible


@asynccontextmanager
async def producing(
    server: Server,
    checker: Checker | None = None,
    **settings: Any,  # noqa: ANN401 - fields of the config
) -> AsyncIterator[Producing]:
    producer = Producing(server.name_address, "pay", ProducerConfig(**settings), checker)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()


def bodies(server: Server, topic: str = "orders", queues: int = 8) -> list[bytes]:
    return [one.body for queue in range(queues) for one in visible(server, topic, queue)]


async def test_a_message_is_stored_in_a_topic_that_it_makes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        sent = await producer.send(Message(topic="orders", body=b"1", key="42", tag="paid"))
        (message,) = visible(server, "orders", sent.queue_id)
        assert message.body == b"1"
        assert sent.queue_offset == 0
        assert server.broker.reader.find("orders", "42", limit=1)
        assert server.broker.reader.find("orders", sent.message_id, limit=1)


async def test_many_messages_share_requests_and_keep_the_order_of_their_key(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        messages = [
            Message(topic="orders", body=b"%d" % number, key=f"key-{number % 7}")
            for number in range(500)
        ]
        handled: list[int] = []
        handle = server.broker.handle

        def counted(connection: ClientConnection, frame: RemotingFrame) -> None:
            handled.append(frame.code)
            handle(connection, frame)

        server.broker.handle = counted  # type: ignore[method-assign]
        await producer.send_many(messages)
        assert len(handled) < 50, Counter(handled)
        for key in range(7):
            queue = [
                int(one.body)
                for queue_id in range(8)
                for one in visible(server, "orders", queue_id)
                if int(one.body) % 7 == key
            ]
            assert queue == list(range(key, 500, 7))


async def test_delayed_messages_do_not_stop_the_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        sent = await producer.send_many(
            [
                Message(topic="orders", body=b"now"),
                Message(topic="orders", body=b"later", delay_ms=60_000),
                Message(topic="orders", body=b"also now"),
            ]
        )
        assert [one.queue_offset >= 0 for one in sent] == [True, False, True]


async def test_a_transaction_is_visible_once_it_is_committed_all_or_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        messages = [Message(topic=topic, body=b"1") for topic in ("orders", "points", "carts")]
        held = await producer.hold(new_transaction_id(), messages)
        assert bodies(server) == []
        decided = await producer.decide(held, Resolution.COMMIT)
        assert (decided.state, decided.is_repeated) == ("committed", False)
        for topic in ("orders", "points", "carts"):
            assert bodies(server, topic) == [b"1"]
        again = await producer.decide(held, Resolution.COMMIT)
        assert (again.state, again.is_repeated) == ("committed", True)
        with pytest.raises(RequestRefused, match="already_committed"):
            await producer.decide(held, Resolution.ROLLBACK)


async def test_a_half_message_has_the_properties_of_rocketmqs(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        held = await producer.hold(new_transaction_id(), [Message(topic="orders")])
        await producer.decide(held, Resolution.COMMIT)
        (message,) = [one for queue in range(8) for one in visible(server, "orders", queue)]
        pairs = parse_properties(message.properties)
        assert (pairs["TRAN_MSG"], pairs["PGROUP"]) == ("true", "pay")


async def test_a_rolled_back_transaction_is_never_visible(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        held = await producer.hold(new_transaction_id(), [Message(topic="orders")])
        assert (await producer.decide(held, Resolution.ROLLBACK)).state == "rolled_back"
        assert bodies(server) == []


async def test_a_large_transaction_goes_in_several_requests_and_is_decided_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.client.producer.native_broker.PART_BYTES_MAX", 4_096)
    async with serving(tmp_path) as server, producing(server) as producer:
        messages = [Message(topic="orders", body=b"x" * 100) for _ in range(300)]
        held = await producer.hold(new_transaction_id(), messages)
        await producer.decide(held, Resolution.COMMIT)
        assert len(bodies(server)) == 300


async def test_many_transactions_at_once_share_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:

        async def pay(number: int) -> None:
            held = await producer.hold(
                new_transaction_id(), [Message(topic="orders", body=b"%d" % number)]
            )
            await producer.decide(held, Resolution.COMMIT if number % 3 else Resolution.ROLLBACK)

        await asyncio.gather(*map(pay, range(300)))
        assert sorted(map(int, bodies(server))) == [one for one in range(300) if one % 3]


async def test_one_bad_transaction_does_not_spoil_those_that_share_its_request(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        await producer.send(Message(topic="orders"))
        await make_topic(server, "orders", perm=4)
        good = producer.hold(new_transaction_id(), [Message(topic="points", body=b"1")])
        bad = producer.hold(new_transaction_id(), [Message(topic="orders")])
        ends = await asyncio.gather(good, bad, return_exceptions=True)
        assert isinstance(ends[0], HeldTransaction)
        assert isinstance(ends[1], RequestRefused)


def ask(server: Server, held: HeldTransaction, told: list[str]) -> None:
    verdict = Verdict(
        half_offset=held.half_offset,
        kind=VerdictKind.ASK,
        state=State.PREPARED,
        checks_sent=0,
    )
    server.broker.checking.obey([verdict], told.extend)


async def test_a_back_check_is_answered_with_the_handlers_resolution(tmp_path: Path) -> None:
    asked: list[Check] = []

    async def know(checks: Sequence[Check]) -> Mapping[str, Resolution]:
        asked.extend(checks)
        return {check.transaction_id: Resolution.COMMIT for check in checks}

    async with serving(tmp_path) as server, producing(server, know) as producer:
        held = await producer.hold("tx-1", [Message(topic="orders", body=b"1", key="42")])
        await eventually(lambda: server.broker.clients.producers("pay"))
        told: list[str] = []
        ask(server, held, told)
        await eventually(lambda: bodies(server) == [b"1"])
        assert told == ["asked"]
        (check,) = asked
        assert (check.transaction_id, check.message.key) == ("tx-1", "42")


async def test_a_failed_answer_means_unknown(tmp_path: Path) -> None:
    async def fail(_checks: Sequence[Check]) -> Mapping[str, Resolution]:
        raise ValueError("the database is away")

    async with serving(tmp_path) as server, producing(server, fail) as producer:
        held = await producer.hold("tx-1", [Message(topic="orders", body=b"1")])
        await eventually(lambda: server.broker.clients.producers("pay"))
        told: list[str] = []
        written = server.broker.store.log.end
        ask(server, held, told)
        await eventually(lambda: told == ["asked"])
        # The broker records the answer too.
        await eventually(lambda: server.broker.store.log.end > written)
        half = server.broker.store.core.half(held.half_offset)
        assert half is not None
        assert half.state is State.PREPARED


async def test_a_refusal_of_the_broker_reaches_the_caller_unchanged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        with pytest.raises(RequestRefused, match="topic_of_system"):
            await producer.send(Message(topic="RMQ_SYS_TRANS_HALF_TOPIC"))
        with pytest.raises(RequestRefused, match="no_messages"):
            await producer.hold("tx", [])
        with pytest.raises(RequestRefused, match="topic_illegal"):
            await producer.send(Message(topic="no blanks, please"))
    with pytest.raises(RequestRefused, match="group_illegal"):
        Producing(server.name_address, "", ProducerConfig())
    with pytest.raises(RequestRefused, match="bad_config"):
        ProducerConfig(timeout_s=0)


async def test_a_broker_that_comes_back_in_time_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        name_port, port = (
            int(address.rpartition(":")[2])
            for address in (server.name_address, server.broker_address)
        )
        producer = Producing(server.name_address, "pay", ProducerConfig())
        await producer.start()
        await producer.send(Message(topic="orders", body=b"1"))
        held = await producer.hold("tx-1", [Message(topic="orders", body=b"2")])
    # The producer must know that the connection is lost: it does not retry a send that may have
    # been stored, and raises instead.
    await eventually(lambda: not producer.network.open_connections())
    sending = asyncio.ensure_future(producer.send(Message(topic="orders", body=b"3")))
    deciding = asyncio.ensure_future(producer.decide(held, Resolution.COMMIT))
    async with serving(tmp_path, broker={"name_port": name_port, "port": port}) as server:
        assert (await deciding).state == "committed"
        await sending
        assert sorted(bodies(server)) == [b"1", b"2", b"3"]
        await producer.close()


async def test_a_broker_that_stays_away_is_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        producer = Producing(server.name_address, "pay", ProducerConfig(timeout_s=0.1))
        await producer.start()
        await producer.send(Message(topic="orders"))
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await producer.send(Message(topic="orders"))
    await producer.close()
