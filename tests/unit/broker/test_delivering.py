"""Over a real socket: waiting pulls, offsets, locks and retries, and how tools see them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.server import Server
from escrowmq.broker.state import long_polls
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.bodies import LockRequest, QueueName, encode_body
from escrowmq.protocol.remoting.client_bodies import (
    ConsumerMembership,
    Heartbeat,
    ProducerMembership,
    SubscriptionBody,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
    UpdateOffsetHeader,
)
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    clock_of,
    ending,
    eventually,
    facts,
    half,
    sending,
    serving,
    visible,
)

PULL = RequestCode.PULL_MESSAGE
MAY_WAIT = 2
SUBSCRIBES = 4
COMMITS = 1


def pulling(offset: int = 0, **fields: Any) -> PullHeader:  # noqa: ANN401 - fields of the header
    values: dict[str, Any] = {
        "consumer_group": "shop",
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": offset,
        "messages_max": 32,
        "sys_flag": SUBSCRIBES,
        "commit_offset": 0,
        "wait_ms": 15_000,
        "subscription": "*",
        "subscription_version": 0,
        **fields,
    }
    return PullHeader(**values)


async def shop(server: Server) -> Peer:
    """Connect a consumer that has sent its subscription."""
    peer = await Peer.to(server.broker_address)
    wants = (SubscriptionBody(topic="orders", expression="paid", version=5),)
    said = Heartbeat(
        client_id="c1",
        producers=(ProducerMembership(group="pay"),),
        consumers=(ConsumerMembership(group="shop", subscriptions=wants),),
    )
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said))
    return peer


async def send(peer: Peer, *bodies: str, **properties: str) -> None:
    for body in bodies:
        answer = await peer.ask(SEND, sending(properties=properties), body.encode())
        assert answer.code == ResponseCode.SUCCESS


def bodies(answer: Any) -> list[str]:  # noqa: ANN401 - a frame
    return [message.body.decode() for message in decode_many(answer.body)]


# Pulls


async def test_a_pull_brings_what_is_there_and_where_to_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b", "c")
        answer = await peer.ask(PULL, pulling(1, messages_max=1))
        assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, ["b"])
        told = facts(answer)
        assert (told["nextBeginOffset"], told["minOffset"], told["maxOffset"]) == ("2", "0", "3")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (pulling(3), ResponseCode.PULL_NOT_FOUND),
        (pulling(9), ResponseCode.PULL_OFFSET_MOVED),
        (pulling(0, queue_id=2), ResponseCode.PULL_NOT_FOUND),
        (pulling(7, queue_id=2), ResponseCode.PULL_OFFSET_MOVED),
        (pulling(0, queue_id=4), ResponseCode.INVALID_PARAMETER),
        (pulling(0, topic="nowhere"), ResponseCode.TOPIC_NOT_EXIST),
        (pulling(0, subscription="x"), ResponseCode.PULL_RETRY_IMMEDIATELY),
        (pulling(0, subscription="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (pulling(0, expression_type="SQL92"), ResponseCode.SYSTEM_ERROR),
        (pulling(0, sys_flag=0), ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
async def test_a_pull_that_finds_nothing_says_why(
    tmp_path: Path, header: PullHeader, code: ResponseCode
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b", "c")
        answer = await peer.ask(PULL, header)
        assert answer.code == code
        if code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            assert facts(answer)["nextBeginOffset"] == "3"


async def test_a_group_gets_the_tags_that_it_subscribed_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server)
        await send(peer, "open")
        await send(peer, "paid", "paid too", TAGS="paid")
        answer = await peer.ask(PULL, pulling(sys_flag=0, subscription_version=5))
        assert bodies(answer) == ["paid", "paid too"]
        newer = await peer.ask(PULL, pulling(sys_flag=0, subscription_version=6))
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_pull_waits_for_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await send(other, "old")
        pull = asyncio.ensure_future(waiting.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT)))
        await eventually(lambda: server.broker.pulling.polls.waiting)
        answer = await other.ask(SEND, half("t"), b"half")
        assert not pull.done()
        await other.ask(END, ending(answer, COMMIT))
        assert bodies(await pull) == ["half"]
        assert server.broker.pulling.polls.waiting == 0


async def test_a_pull_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "old")
        header = pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT, wait_ms=60)
        assert (await peer.ask(PULL, header)).code == ResponseCode.PULL_NOT_FOUND
        assert server.broker.pulling.polls.waiting == 0


async def test_very_many_whose_time_is_up_are_answered_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for more than one pull, the loop runs after each; all are answered."""
    monkeypatch.setattr(long_polls, "TRY_S", -1.0)
    async with serving(tmp_path) as server:
        peers = [await Peer.to(server.broker_address) for _ in range(3)]
        await send(peers[0], "old")
        asked = [
            asyncio.ensure_future(peer.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT)))
            for peer in peers
        ]
        pulls = server.broker.pulling.polls
        await eventually(lambda: pulls.waiting == len(peers))
        tick_at = long_polls._tick_at
        monkeypatch.setattr(long_polls, "_tick_at", lambda seconds: tick_at(seconds + 20))
        pulls.give_up()
        assert pulls.waiting == len(peers) - 1
        answers = await asyncio.gather(*asked)
        assert {one.code for one in answers} == {ResponseCode.PULL_NOT_FOUND}
        assert pulls.waiting == 0


# Offsets


async def offset_of(peer: Peer, code: RequestCode, header: Any) -> int:  # noqa: ANN401
    return int(facts(await peer.ask(code, header))["offset"])


async def test_offsets_are_kept_and_asked_for(tmp_path: Path) -> None:
    known = QueryOffsetHeader(consumer_group="shop", topic="orders", queue_id=1)
    never = QueryOffsetHeader(consumer_group="new", topic="orders", queue_id=1, zero_if_none=False)
    query = RequestCode.QUERY_CONSUMER_OFFSET
    async with serving(tmp_path) as server:
        peer = await shop(server)
        assert await offset_of(peer, query, known) == 0
        await send(peer, "a", "b")
        assert await offset_of(peer, query, known) == 0
        assert (await peer.ask(query, never)).code == ResponseCode.QUERY_NOT_FOUND
        update = UpdateOffsetHeader(
            consumer_group="shop", topic="orders", queue_id=1, commit_offset=2
        )
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        assert await offset_of(peer, query, known) == 2
        back = msgspec.structs.replace(update, commit_offset=1)
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, back)
        assert await offset_of(peer, query, known) == 1
        await peer.ask(PULL, pulling(2, sys_flag=SUBSCRIBES | COMMITS, commit_offset=2))
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await offset_of(peer, query, known) == 2


async def test_a_queue_tells_its_ends_and_times(tmp_path: Path) -> None:
    queue = QueueHeader(topic="orders", queue_id=1)
    empty = QueueHeader(topic="orders", queue_id=2)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        clock = clock_of(server)
        for body in "abc":
            await send(peer, body)
            clock.advance(ms=100)
        assert await offset_of(peer, RequestCode.GET_MAX_OFFSET, queue) == 3
        assert await offset_of(peer, RequestCode.GET_MIN_OFFSET, queue) == 0
        assert await offset_of(peer, RequestCode.GET_MAX_OFFSET, empty) == 0
        for at_ms, boundary, found in (
            (T0 + 100, "lower", 1),
            (T0 + 101, "lower", 2),
            (T0 + 100, "upper", 1),
            (T0 - 1, "upper", 0),
        ):
            header = SearchOffsetHeader(
                topic="orders", queue_id=1, stored_at_ms=at_ms, boundary=boundary
            )
            search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            assert await offset_of(peer, search, header) == found
            nothing = msgspec.structs.replace(header, queue_id=2)
            assert await offset_of(peer, search, nothing) == 0
        for asked, at in ((queue, T0), (empty, -1)):
            answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, asked)
            assert facts(answer)["timestamp"] == str(at)


async def test_a_queue_is_locked_by_one_consumer_of_a_group(tmp_path: Path) -> None:
    queue = QueueName(broker_name="broker-a", topic="orders", queue_id=1)

    def wanting(client_id: str, group: str = "shop") -> bytes:
        return encode_body(LockRequest(consumer_group=group, client_id=client_id, queues=(queue,)))

    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)

        async def locks(client_id: str, group: str = "shop") -> bool:
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=wanting(client_id, group))
            return bool(msgspec.json.decode(answer.body)["lockOKMQSet"])

        assert await locks("a")
        assert await locks("a")
        assert not await locks("b")
        assert await locks("b", "another group")
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=wanting("b"))
        assert not await locks("b")
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=wanting("a"))
        assert await locks("b")
        clock = clock_of(server)
        clock.advance(ms=60_000)
        assert await locks("a")
        clock.advance(ms=59_999)
        server.broker.locks.expire()
        assert not await locks("b")
        clock.advance(ms=1)
        server.broker.locks.expire()
        assert await locks("b")


# Retries


async def given_back(peer: Peer, server: Server, topic: str, queue_id: int, **fields: Any) -> int:  # noqa: ANN401
    (*_, last) = visible(server, topic, queue_id)
    header = SendBackHeader(
        log_offset=last.log_offset, consumer_group="shop", **{"delay_level": 0, **fields}
    )
    return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code


async def test_a_message_that_is_given_back_comes_again_and_then_to_the_dead_letters(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await shop(server)
        answer = await peer.ask(SEND, half("t", TAGS="paid"), b"x")
        await peer.ask(END, ending(answer, COMMIT))
        assert await given_back(peer, server, "orders", 1) == ResponseCode.SUCCESS
        assert visible(server, "%RETRY%shop", 0) == []
        clock.advance(ms=10_000)
        await eventually(lambda: visible(server, "%RETRY%shop", 0))
        (again,) = visible(server, "%RETRY%shop", 0)
        assert (again.body, again.reconsume_times, again.sys_flag) == (b"x", 1, 0)
        kept = parse_properties(again.properties)
        assert kept["RETRY_TOPIC"] == "orders"
        assert kept["ORIGIN_MESSAGE_ID"] == facts(answer)["msgId"]
        assert "TRAN_MSG" not in kept
        retry = ("%RETRY%shop", 0)
        assert await given_back(peer, server, *retry, max_reconsume_times=1) == 0
        (dead,) = visible(server, "%DLQ%shop", 0)
        assert parse_properties(dead.properties)["RETRY_TOPIC"] == "orders"
        assert await given_back(peer, server, *retry, delay_level=-1) == 0
        assert len(visible(server, "%DLQ%shop", 0)) == 2


async def test_the_owner_sets_how_long_levels_and_retries_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"delay_levels": "2s 2s 3s"}) as server:
        clock = clock_of(server)
        peer = await shop(server)
        await peer.ask(SEND, sending(properties={"DELAY": "1"}), b"later")
        await peer.ask(SEND, sending(), b"now")
        assert [one.body for one in visible(server)] == [b"now"]
        clock.advance(ms=2_000)
        await eventually(lambda: len(visible(server)) == 2)
        assert await given_back(peer, server, "orders", 1) == ResponseCode.SUCCESS
        clock.advance(ms=3_000)
        await eventually(lambda: visible(server, "%RETRY%shop", 0))


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_delayed_message_is_of_that_type(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path, topics={"enforce_type": True}) as server:
        peer = await shop(server)
        assert (await peer.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS
        later = sending(properties={name: "1"})
        assert (await peer.ask(SEND, later, b"x")).code == ResponseCode.NO_PERMISSION


async def test_an_undecided_message_cannot_be_given_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server)
        answer = await peer.ask(SEND, half("t"), b"x")
        header = SendBackHeader(
            log_offset=int(facts(answer)["msgId"][16:], 16), consumer_group="shop", delay_level=0
        )
        back = RequestCode.CONSUMER_SEND_MSG_BACK
        assert (await peer.ask(back, header)).code == ResponseCode.SYSTEM_ERROR
        stranger = msgspec.structs.replace(header, consumer_group="stranger")
        assert (await peer.ask(back, stranger)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
