"""PullMessage and the offsets of gRPC consumers that keep their own."""

from __future__ import annotations

import asyncio
import zlib
from hashlib import md5
from pathlib import Path

import pytest

from escrowmq.broker.grpc.names import duration, timestamp
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcOffsetPolicy
from escrowmq.protocol.message.properties import format_properties
from tests.unit.broker.grpc_consuming import ack, receipt, receive
from tests.unit.broker.grpc_peer import (
    COMMIT,
    DELAY,
    FIFO,
    NORMAL,
    TRANSACTION,
    GrpcPeer,
    half,
    message,
)
from tests.unit.broker.wire import (
    DEADLINE_S,
    SEND,
    T0,
    Peer,
    clock_of,
    eventually,
    sending,
    serving,
    visible,
)

OK, NOT_FOUND, ILLEGAL_OFFSET = 20_000, 40_401, 40_019


def queue(topic: str = "orders", queue_id: int = 1) -> grpc.MessageQueue:
    return grpc.MessageQueue(topic=grpc.Resource(name=topic), id=queue_id)


def pulling(
    offset: int = 0, wait_ms: int = 0, tags: str = "*", **fields: int
) -> grpc.PullMessageRequest:
    return grpc.PullMessageRequest(
        group=grpc.Resource(name="readers"),
        message_queue=queue(),
        offset=offset,
        filter_expression=grpc.FilterExpression(type=1, expression=tags),
        long_polling_timeout=duration(wait_ms),
        **fields,
    )


def code(parts: list[grpc.PullMessageResponse]) -> int:
    return parts[0].status.code


def bodies(parts: list[grpc.PullMessageResponse]) -> list[bytes]:
    assert parts[-1].WhichOneof("content") == "next_offset"
    return [part.message.body for part in parts[1:-1]]


async def test_a_pull_brings_messages_and_where_to_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        for number in range(3):
            await peer.send(message(f"m{number}", b"%d" % number))
        parts = await peer.all("PullMessage", pulling(batch_size=2))
        assert (code(parts), bodies(parts), parts[-1].next_offset) == (OK, [b"0", b"1"], 2)
        rest = await peer.all("PullMessage", pulling(2))
        assert (bodies(rest), rest[-1].next_offset) == ([b"2"], 3)
        assert server.broker.counts.given("readers", "orders").messages == 3


async def test_a_message_is_told_with_all_that_it_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(
            message(
                kind=FIFO,
                message_group="g",
                tag="paid",
                keys=["a", "b"],
                users={"color": "red"},
                trace_context="trace",
            )
        )
        queue_id = next(one.queue_id for one in server.broker.store.queues.values() if one.end)
        request = pulling()
        request.message_queue.id = queue_id
        told = (await peer.all("PullMessage", request))[1].message
        assert (told.topic.name, dict(told.user_properties)) == ("orders", {"color": "red"})
        system = told.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == ("m1", "paid", ["a", "b"])
        assert (system.message_group, system.trace_context) == ("g", "trace")
        assert (system.message_type, system.delivery_attempt) == (FIFO, 1)
        assert (system.queue_id, system.queue_offset) == (queue_id, 0)
        assert (system.born_timestamp.seconds, system.store_timestamp.seconds) == (
            T0 // 1_000 - 1,
            T0 // 1_000,
        )
        assert system.body_encoding == 1
        assert (
            system.body_digest.checksum == md5(b"paid", usedforsecurity=False).hexdigest().upper()
        )
        assert system.born_host == f"127.0.0.1:{peer.connection.port}"
        assert system.store_host == server.broker_address


async def test_messages_of_every_type_say_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (held,) = (await peer.send(half(topic="tx"))).entries
        await peer.end(held, COMMIT, "tx")
        at = timestamp(T0 + 1_000)
        await peer.send(message(topic="later", kind=DELAY, delivery_timestamp=at))
        clock_of(server).advance(ms=1_001)
        await eventually(lambda: visible(server, "later"))
        for topic, kind in (("tx", TRANSACTION), ("later", DELAY)):
            request = pulling()
            request.message_queue.topic.name = topic
            (_, part, _) = await peer.all("PullMessage", request)
            system = part.message.system_properties
            assert system.message_type == kind
            assert system.HasField("delivery_timestamp") is (kind == DELAY)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_body_that_remoting_compressed_is_told_plain(
    tmp_path: Path, *, is_whole: bool
) -> None:
    async with serving(tmp_path) as server:
        remoting = await Peer.to(server.broker_address)
        packed = zlib.compress(b"paid" * 100)
        body = packed if is_whole else packed[:-3]
        await remoting.ask(SEND, sending(sys_flag=1), body)
        (_, part, _) = await GrpcPeer.of(server).all("PullMessage", pulling())
        told = part.message
        assert told.body == (b"paid" * 100 if is_whole else body)
        system = told.system_properties
        assert (system.body_encoding, system.message_type) == (1, NORMAL)


async def test_properties_of_the_broker_are_not_told_as_the_clients(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        remoting = await Peer.to(server.broker_address)
        properties = {"color": "red", "WAIT": "true", "DLQ_ORIGIN_TOPIC": "first"}
        assert format_properties(properties)
        await remoting.ask(SEND, sending(properties=properties), b"x")
        (_, part, _) = await GrpcPeer.of(server).all("PullMessage", pulling())
        assert dict(part.message.user_properties) == {"color": "red"}
        assert part.message.system_properties.dead_letter_queue.topic == "first"
        assert part.message.system_properties.message_id


async def test_a_pull_selects_by_tags(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message("m1", b"1", tag="a"))
        await peer.send(message("m2", b"2", tag="b"))
        assert bodies(await peer.all("PullMessage", pulling(tags="b || c"))) == [b"2"]
        none = await peer.all("PullMessage", pulling(tags="c"))
        assert (code(none), none[-1].next_offset) == (NOT_FOUND, 2)


async def test_a_pull_waits_for_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message("m1", b"1"))
        call = peer.begin("PullMessage", pulling(1, 20_000))
        assert call.is_open
        await peer.send(message("m2", b"2"))
        assert await asyncio.wait_for(call.ended, DEADLINE_S) == (0, "")
        assert call.sent.qsize() == 3


async def test_a_pull_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message())
        parts = await peer.all("PullMessage", pulling(1, 50))
        assert (code(parts), parts[-1].next_offset) == (NOT_FOUND, 1)


async def test_a_pull_of_a_client_that_goes_is_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message())
        call = peer.begin("PullMessage", pulling(1, 20_000))
        pulls = server.broker.grpc_pulling
        assert pulls is not None
        polls = pulls.polls
        await eventually(lambda: polls.waiting == 1)
        call.cancel()
        assert polls.waiting == 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (pulling(-1), ILLEGAL_OFFSET),
        (pulling(0, 10**9), 40_018),
        (pulling(0, -5), 40_018),
        (pulling(tags="|| ||"), 40_010),
        (pulling(9), ILLEGAL_OFFSET),
    ],
)
async def test_a_wrong_pull_has_a_code(
    tmp_path: Path, request_: grpc.PullMessageRequest, expected: int
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message())
        assert code(await peer.all("PullMessage", request_)) == expected


async def test_a_queue_that_does_not_exist_has_a_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        assert code(await peer.all("PullMessage", pulling())) == 40_402
        await peer.send(message(queue_id=0))
        request = pulling()
        request.message_queue.id = 99
        assert code(await peer.all("PullMessage", request)) == 40_000
        # Nothing was ever sent to the queue.
        assert code(await peer.all("PullMessage", pulling())) == NOT_FOUND
        assert code(await peer.all("PullMessage", pulling(5))) == ILLEGAL_OFFSET


async def test_a_group_keeps_its_offset_at_the_broker(tmp_path: Path) -> None:
    readers = grpc.Resource(name="readers")
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        for number in range(3):
            await peer.send(message(f"m{number}"))
        asked = grpc.GetOffsetRequest(group=readers, message_queue=queue())
        assert (await peer.ask("GetOffset", asked)).status.code == 40_404
        update = grpc.UpdateOffsetRequest(group=readers, message_queue=queue(), offset=2)
        assert (await peer.ask("UpdateOffset", update)).status.code == OK
        assert (await peer.ask("GetOffset", asked)).offset == 2
        # An offset beyond the end of the queue is the end.
        update = grpc.UpdateOffsetRequest(group=readers, message_queue=queue(), offset=99)
        await peer.ask("UpdateOffset", update)
        assert (await peer.ask("GetOffset", asked)).offset == 3
        update = grpc.UpdateOffsetRequest(group=readers, message_queue=queue(), offset=-1)
        assert (await peer.ask("UpdateOffset", update)).status.code == ILLEGAL_OFFSET


async def test_a_pull_ends_pop_and_starts_at_the_acknowledged_prefix(tmp_path: Path) -> None:
    readers = grpc.Resource(name="readers")
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        for number in range(3):
            await peer.send(message(f"m{number}", b"%d" % number))
        first, *_ = await receive(peer)
        assert (await ack(peer, receipt(first))).status.code == OK
        too_far = await peer.all("PullMessage", pulling(3))
        assert (code(too_far), too_far[-1].next_offset) == (ILLEGAL_OFFSET, 1)
        assert bodies(await peer.all("PullMessage", pulling(1))) == [b"1", b"2"]
        places = server.broker.popping.places
        await eventually(lambda: not places.is_popped("readers", "orders", 1))
        assert places.in_flight == 0
        asked = grpc.GetOffsetRequest(group=readers, message_queue=queue())
        assert (await peer.ask("GetOffset", asked)).offset == 1
        update = grpc.UpdateOffsetRequest(group=readers, message_queue=queue(), offset=2)
        assert (await peer.ask("UpdateOffset", update)).status.code == OK
        assert (await peer.ask("GetOffset", asked)).offset == 2


@pytest.mark.parametrize(
    ("policy", "at_ms", "offset"),
    [
        (GrpcOffsetPolicy.BEGINNING, 0, 0),
        (GrpcOffsetPolicy.END, 0, 2),
        (GrpcOffsetPolicy.TIMESTAMP, T0 + 500, 1),
        (GrpcOffsetPolicy.TIMESTAMP, T0 + 10_000, 2),
    ],
)
async def test_offsets_of_a_queue_are_found(
    tmp_path: Path, policy: int, at_ms: int, offset: int
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message("m1"))
        clock_of(server).advance(ms=1_000)
        await peer.send(message("m2"))
        request = grpc.QueryOffsetRequest(
            message_queue=queue(), query_offset_policy=policy, timestamp=timestamp(at_ms)
        )
        assert (await peer.ask("QueryOffset", request)).offset == offset


async def test_a_paused_group_gets_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message())
        await peer.all("PullMessage", pulling())
        broker = server.broker
        broker.groups.paused["readers"] = object()  # type: ignore[assignment]  # only its key counts
        assert code(await peer.all("PullMessage", pulling())) == NOT_FOUND
