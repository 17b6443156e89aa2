"""ReceiveMessage and what consumers do with receipts, over the pop model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.grpc.names import duration
from escrowmq.broker.grpc.renewing import HELD_MS_MAX, INVISIBLE_MS
from escrowmq.broker.server import Server
from escrowmq.model.catalog import Group
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.testing.calls import accepted
from tests.unit.broker.grpc_peer import FIFO, GrpcPeer, HeldCall, message, subscribing
from tests.unit.broker.wire import (
    DEADLINE_S,
    clock_of,
    eventually,
    make_topic,
    serving,
    visible,
)

OK, NOT_FOUND, STALE = 20_000, 40_401, 40_013
READERS = grpc.Resource(name="readers")
ORDERS = grpc.Resource(name="orders")
INVISIBLE = 30_000


def receiving(wait_ms: int = 0, **fields: Any) -> grpc.ReceiveMessageRequest:  # noqa: ANN401
    queue_id = fields.pop("queue_id", -1)
    tags = fields.pop("tags", "*")
    values: dict[str, Any] = {
        "batch_size": 32,
        "invisible_duration": duration(INVISIBLE),
        **fields,
    }
    return grpc.ReceiveMessageRequest(
        group=READERS,
        message_queue=grpc.MessageQueue(topic=ORDERS, id=queue_id),
        filter_expression=grpc.FilterExpression(type=1, expression=tags),
        long_polling_timeout=duration(wait_ms),
        **values,
    )


async def receive(peer: GrpcPeer, wait_ms: int = 0, **fields: Any) -> list[grpc.Message]:  # noqa: ANN401
    """Return the received messages."""
    parts = await peer.all("ReceiveMessage", receiving(wait_ms, **fields))
    assert parts[0].status.code == (OK if len(parts) > 2 else NOT_FOUND)
    assert parts[-1].WhichOneof("content") == "delivery_timestamp"
    return [part.message for part in parts[1:-1]]


def receipt(told: grpc.Message) -> str:
    return told.system_properties.receipt_handle


async def ack(peer: GrpcPeer, *receipts: str, group: str = "readers") -> grpc.AckMessageResponse:
    entries = [
        grpc.AckMessageEntry(message_id=f"m{at}", receipt_handle=handle)
        for at, handle in enumerate(receipts)
    ]
    request = grpc.AckMessageRequest(group=grpc.Resource(name=group), topic=ORDERS, entries=entries)
    answer = await peer.ask("AckMessage", request)
    assert isinstance(answer, grpc.AckMessageResponse)
    return answer


async def change(peer: GrpcPeer, handle: str, ms: int) -> grpc.ChangeInvisibleDurationResponse:
    request = grpc.ChangeInvisibleDurationRequest(
        group=READERS, topic=ORDERS, receipt_handle=handle, invisible_duration=duration(ms)
    )
    answer = await peer.ask("ChangeInvisibleDuration", request)
    assert isinstance(answer, grpc.ChangeInvisibleDurationResponse)
    return answer


def pass_time(server: Server, ms: int) -> None:
    """Let time pass, and the broker look at it."""
    clock_of(server).advance(ms=ms)
    server.broker.popping.tick()


async def sent(server: Server, count: int = 1, **fields: Any) -> GrpcPeer:  # noqa: ANN401
    peer = GrpcPeer.of(server)
    await peer.send(*[message(f"m{at}", b"%d" % at, **fields) for at in range(count)])
    return peer


async def test_a_message_is_received_and_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        system = told.system_properties
        assert (told.body, system.message_id, system.delivery_attempt) == (b"0", "m0", 1)
        assert system.invisible_duration.seconds == INVISIBLE // 1_000
        answer = await ack(peer, receipt(told))
        assert answer.status.code == OK
        assert [(one.message_id, one.status.code) for one in answer.entries] == [("m0", OK)]
        pass_time(server, 10 * INVISIBLE)
        assert await receive(peer) == []
        clock = clock_of(server)
    async with serving(tmp_path, clock) as server:
        assert await receive(GrpcPeer.of(server)) == []


async def test_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (first,) = await receive(peer)
        assert await receive(peer) == []
        pass_time(server, INVISIBLE + 1)
        (again,) = await receive(peer)
        assert again.system_properties.delivery_attempt == 2
        assert (await ack(peer, receipt(first))).status.code == STALE
        assert (await ack(peer, receipt(again))).status.code == OK


async def test_a_consumer_that_is_killed_before_its_ack_loses_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await receive(await sent(server))
        clock = clock_of(server)
    async with serving(tmp_path, clock) as server:
        assert [one.body for one in await receive(GrpcPeer.of(server))] == [b"0"]


async def test_a_receive_waits_for_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        await receive(peer)
        call = peer.begin("ReceiveMessage", receiving(20_000))
        await eventually(lambda: server.broker.popping.polls.waiting == 1)
        await peer.send(message("m2", b"late"))
        await asyncio.wait_for(call.ended, DEADLINE_S)
        assert call.sent.qsize() == 3


async def test_a_receive_ends_before_its_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        await receive(peer)
        peer.deadline = asyncio.get_running_loop().time() + 0.6
        assert await receive(peer, 20_000) == []


async def test_a_receive_of_a_client_that_goes_is_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        await receive(peer)
        call = peer.begin("ReceiveMessage", receiving(20_000))
        await eventually(lambda: server.broker.popping.polls.waiting == 1)
        call.cancel()
        assert server.broker.popping.polls.waiting == 0


async def test_what_a_client_that_goes_did_not_get_is_for_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server, 5)
        # The stream takes the status and two messages.
        call = peer.begin("ReceiveMessage", receiving(), takes=3)
        await eventually(lambda: not call.is_open)
        pass_time(server, 2)
        assert [one.body for one in await receive(peer)] == [b"2", b"3", b"4"]


async def test_a_receive_selects_by_tags(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message("m1", b"1", tag="a"), message("m2", b"2", tag="b"))
        assert [one.body for one in await receive(peer, tags="b")] == [b"2"]


async def test_a_receive_brings_messages_of_every_queue(tmp_path: Path) -> None:
    """Simple consumers name one queue after the other."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        for queue_id in range(4):
            await peer.send(message(f"m{queue_id}", queue_id=queue_id))
        assert len(await receive(peer, queue_id=7)) == 4


async def test_a_batch_has_at_most_32_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server, 40)
        assert len(await receive(peer, batch_size=3)) == 3
        assert len(await receive(peer, batch_size=1_000)) == 32


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"batch_size": 0}, 40_000),
        ({"invisible_duration": duration(9_999)}, 40_011),
        ({"invisible_duration": duration(13 * 3_600_000)}, 40_011),
        ({"wait_ms": 10**7}, 40_018),
        ({"tags": "||"}, 40_010),
    ],
)
async def test_a_wrong_receive_has_a_code(
    tmp_path: Path, fields: dict[str, Any], code: int
) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (part,) = await peer.all("ReceiveMessage", receiving(**fields))
        assert part.status.code == code


async def test_unknown_names_have_their_codes(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"auto_create_groups": False}) as server:
        peer = GrpcPeer.of(server)
        (part,) = await peer.all("ReceiveMessage", receiving())
        assert part.status.code == 40_403
        accepted(await server.broker.writer.submit(server.broker.groups.put(Group(name="readers"))))
        (part,) = await peer.all("ReceiveMessage", receiving())
        assert part.status.code == 40_402


async def test_receipts_that_no_delivery_has_are_invalid(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        forged = receipt(told)[:-3] + "999"
        answer = await ack(peer, "", "x", forged, receipt(told))
        assert answer.status.code == 30_000
        assert [one.status.code for one in answer.entries] == [STALE, STALE, STALE, OK]
        assert (await ack(peer)).status.code == 40_000
        assert (await change(peer, forged, 1_000)).status.code == STALE


async def test_a_receipt_is_of_its_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        assert (await ack(peer, receipt(told), group="others")).status.code == STALE


async def test_a_repeated_ack_is_ok(tmp_path: Path) -> None:
    """Its answer may have been lost."""
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        assert (await ack(peer, receipt(told))).status.code == OK
        assert (await ack(peer, receipt(told))).status.code == OK


async def test_a_consumer_sets_when_a_message_comes_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        answer = await change(peer, receipt(told), 60_000)
        assert answer.status.code == OK
        assert answer.receipt_handle != receipt(told)
        pass_time(server, INVISIBLE + 1)
        assert await receive(peer) == []
        assert (await ack(peer, receipt(told))).status.code == STALE
        soon = await change(peer, answer.receipt_handle, 1_000)
        pass_time(server, 1_001)
        (again,) = await receive(peer)
        assert again.system_properties.delivery_attempt == 2
        assert (await change(peer, soon.receipt_handle, 1_000)).status.code == STALE
        assert (await change(peer, receipt(again), 10**9)).status.code == 40_011


async def test_a_message_that_its_consumer_gives_up_is_a_dead_letter(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        (told,) = await receive(peer)
        request = grpc.ForwardMessageToDeadLetterQueueRequest(
            group=READERS, topic=ORDERS, receipt_handle=receipt(told), message_id="m0"
        )
        answer = await peer.ask("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == OK
        assert [one.body for one in visible(server, "%DLQ%readers", 0)] == [b"0"]
        pass_time(server, 10 * INVISIBLE)
        assert await receive(peer) == []
        again = await peer.ask("ForwardMessageToDeadLetterQueue", request)
        assert again.status.code == STALE


async def test_an_ordered_group_waits_for_a_failing_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 1, message_type="FIFO")  # type: ignore[arg-type]  # a text
        group = Group(name="readers", is_ordered=True)
        accepted(await server.broker.writer.submit(server.broker.groups.put(group)))
        peer = await sent(server, 3, kind=FIFO, message_group="g")
        (first,) = await receive(peer, queue_id=0, batch_size=1)
        assert await receive(peer, queue_id=0) == []
        pass_time(server, INVISIBLE + 1)
        (again,) = await receive(peer, queue_id=0, batch_size=1)
        assert (first.body, again.body) == (b"0", b"0")
        await ack(peer, receipt(again))
        assert [one.body for one in await receive(peer, queue_id=0)] == [b"1", b"2"]
        assigned = await peer.ask(
            "QueryAssignment", grpc.QueryAssignmentRequest(topic=ORDERS, group=READERS)
        )
        assert [one.message_queue.id for one in assigned.assignments] == [0]


# Consumers that leave the invisible time to the broker.


async def pushed(server: Server) -> tuple[GrpcPeer, HeldCall, grpc.Message]:
    peer = await sent(server)
    stream = await peer.tell(subscribing("readers", "orders"))
    (told,) = await receive(peer, auto_renew=True)
    assert told.system_properties.invisible_duration.seconds == INVISIBLE_MS // 1_000
    return peer, stream, told


async def test_a_message_stays_invisible_while_its_client_is_online(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, told = await pushed(server)
        pass_time(server, 30 * INVISIBLE_MS)
        assert await receive(peer) == []
        assert (await ack(peer, receipt(told))).status.code == OK


async def test_a_message_comes_again_after_three_hours_at_the_latest(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        pass_time(server, HELD_MS_MAX + 1)
        assert len(await receive(peer)) == 1


async def test_the_messages_of_a_client_that_goes_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, stream, _ = await pushed(server)
        stream.cancel()
        pass_time(server, INVISIBLE_MS - 1)
        assert await receive(peer) == []
        pass_time(server, 2)
        assert len(await receive(peer)) == 1
        assert server.broker.telemetry is not None
        server.broker.telemetry.sweep()
        assert server.broker.telemetry.renewals.count("client-1") == 0


async def test_a_client_that_comes_back_keeps_its_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        stream.cancel()
        pass_time(server, INVISIBLE_MS // 2)
        await peer.tell(subscribing("readers", "orders"))
        pass_time(server, 10 * INVISIBLE_MS)
        assert await receive(peer) == []
        assert (await ack(peer, receipt(told))).status.code == OK


async def test_the_messages_of_a_client_that_says_goodbye_come_again_at_once(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 1


async def test_the_messages_of_a_silent_client_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        assert server.broker.telemetry is not None
        clock_of(server).advance(ms=121_000)
        server.broker.telemetry.sweep()
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 1


async def test_a_client_that_sets_the_time_itself_is_obeyed(tmp_path: Path) -> None:
    """A push consumer whose handler failed asks for the message again."""
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        await change(peer, receipt(told), 10_000)
        stream.cancel()
        pass_time(server, 10_001)
        (again,) = await receive(peer)
        assert again.system_properties.delivery_attempt == 2


async def test_many_messages_of_a_client_are_let_go_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.broker.grpc.renewing.SLICE_MAX", 3)
    async with serving(tmp_path) as server:
        peer = await sent(server, 10)
        await peer.tell(subscribing("readers", "orders"))
        held = await receive(peer, auto_renew=True)
        assert len(held) == 10
        # One was acknowledged by another client meanwhile.
        await ack(peer.again("other"), receipt(held[4]))
        await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        for _ in range(10):
            await asyncio.sleep(0)
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 9


async def test_without_settings_a_message_is_invisible_for_a_minute(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        await receive(peer, auto_renew=True)
        pass_time(server, INVISIBLE_MS + 1)
        assert len(await receive(peer)) == 1
