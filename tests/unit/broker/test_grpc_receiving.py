"""ReceiveMessage and what consumers do with receipts, over the pop model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.broker.grpc.names import duration
from escrowmq.model.catalog import Group
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.testing.calls import accepted
from tests.unit.broker.grpc_consuming import (
    INVISIBLE,
    OK,
    ORDERS,
    READERS,
    STALE,
    ack,
    change,
    pass_time,
    receipt,
    receive,
    receiving,
    sent,
)
from tests.unit.broker.grpc_peer import FIFO, GrpcPeer, HeldCall, message
from tests.unit.broker.wire import (
    DEADLINE_S,
    clock_of,
    eventually,
    make_topic,
    serving,
    visible,
)

if TYPE_CHECKING:
    from escrowmq.broker.net.limits import Late


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


async def test_the_checksum_of_a_body_is_one_that_every_client_reads_alike(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (told,) = await receive(await sent(server))
        digest = told.system_properties.body_digest
        assert (digest.type, digest.checksum) == (2, "CFCD208495D565EF66E7DFF9F98764DA")


async def test_an_unacknowledged_message_comes_again(tmp_path: Path) -> None:
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


async def test_messages_that_a_lost_client_did_not_get_go_to_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server, 5)
        # The stream takes the status and two messages.
        call = peer.begin("ReceiveMessage", receiving(), takes=3)
        await eventually(lambda: not call.is_open)
        pass_time(server, 2)
        assert [one.body for one in await receive(peer)] == [b"2", b"3", b"4"]


async def test_an_early_ack_does_not_keep_the_rest_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client acknowledges the first message of an answer, and is gone before the next one."""
    turns: list[Late] = []
    monkeypatch.setattr(HeldCall, "is_any_behind", True)
    monkeypatch.setattr(HeldCall, "ask_for_turn", lambda _, late: turns.append(late))
    async with serving(tmp_path) as server:
        peer = await sent(server, 3)
        call = peer.begin("ReceiveMessage", receiving())
        await eventually(lambda: turns)
        turns.pop().take_turn(0)
        await call.take(grpc.ReceiveMessageResponse)
        first = (await call.take(grpc.ReceiveMessageResponse)).message
        await ack(peer, receipt(first))
        call.cancel()
        turns.clear()
        monkeypatch.undo()
        pass_time(server, 2)
        assert [one.body for one in await receive(peer)] == [b"1", b"2"]


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
