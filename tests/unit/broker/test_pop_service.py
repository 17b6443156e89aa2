"""The pop service as any protocol calls it: receipts, dead letters, resets, limits, a hard kill."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.pop import taking
from escrowmq.broker.pop.alarms import Alarms
from escrowmq.broker.pop.receipts import (
    AckOutcome,
    Receipt,
    Receive,
    ReceivedBatch,
    ReceiveStatus,
    read_receipt,
)
from escrowmq.broker.server import Server
from escrowmq.broker.state import long_polls
from escrowmq.model.catalog import Group
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.futures import resolve
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.remoting.admin_headers import ResetOffsetHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.transaction.commands import RemoveGroup
from tests.conformance.talk import beat
from tests.unit.broker.wire import (
    SEND,
    Peer,
    clock_of,
    eventually,
    sending,
    serving,
    visible,
)

INVISIBLE_MS = 60_000


async def shop(server: Server, *bodies: str) -> Peer:
    """Return a peer of the group ``shop``, after these messages were sent."""
    peer = await Peer.to(server.broker_address)
    await beat(peer)
    for body in bodies:
        await peer.ask(SEND, sending(), body.encode())
    return peer


async def receive(server: Server, **fields: Any) -> ReceivedBatch:  # noqa: ANN401 - fields of Receive
    answer: asyncio.Future[ReceivedBatch] = asyncio.get_running_loop().create_future()
    wanted = Receive(**{"group": "shop", "topic": "orders", "invisible_ms": INVISIBLE_MS, **fields})
    server.broker.popping.receive(wanted, partial(resolve, answer), "test")
    return await answer


async def acknowledge(server: Server, *receipts: Receipt) -> list[AckOutcome]:
    answer: asyncio.Future[list[AckOutcome]] = asyncio.get_running_loop().create_future()
    server.broker.popping.acknowledge("shop", receipts, partial(resolve, answer), "test")
    return await answer


async def test_a_receipt_travels_as_text_and_must_match_in_every_part(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await shop(server, "a", "b")
        first, second = (one.receipt for one in (await receive(server)).messages)
        text = first.text()
        assert read_receipt("shop", "orders", text) == first
        mark, epoch, queue, queue_id, offset, popped_at_ms, attempt = text.split(".")
        forged = first
        for parts in (
            (mark, "other", queue, queue_id, offset, popped_at_ms, attempt),
            (mark, epoch, "99", queue_id, offset, popped_at_ms, attempt),
            (mark, epoch, queue, "0", offset, popped_at_ms, attempt),
            (mark, epoch, queue, queue_id, "77", popped_at_ms, attempt),
            (mark, epoch, queue, queue_id, offset, "1", attempt),
            (mark, epoch, queue, queue_id, offset, popped_at_ms, "2"),
        ):
            forged = read_receipt("shop", "orders", ".".join(parts))
            assert await acknowledge(server, forged) == [AckOutcome.STALE], parts
            with pytest.raises(RequestRefused, match="receipt_stale"):
                server.broker.popping.change_invisible(forged, 1_000)
        outcomes = await acknowledge(server, first, forged, second)
        assert outcomes == [AckOutcome.ACKNOWLEDGED, AckOutcome.STALE, AckOutcome.ACKNOWLEDGED]
        for text in ("", "1", "2.a.1.1.1.1.1", "1.a.b.1.1.1.1", "1.a.1.1.1.1"):
            with pytest.raises(RequestRefused, match="receipt_malformed"):
                read_receipt("shop", "orders", text)


async def test_a_consumer_gives_up_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await shop(server, "bad", "good")
        service = server.broker.popping
        bad, good = (one.receipt for one in (await receive(server, is_fifo=True)).messages)
        behind = asyncio.ensure_future(receive(server, is_fifo=True, wait_ms=15_000))
        await eventually(lambda: service.polls.waiting)
        for receipt in (bad, good):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            service.dead_letter(receipt, partial(resolve, done), "test")
            await done
        assert [one.body for one in visible(server, "%DLQ%shop", 0)] == [b"bad", b"good"]
        await eventually(lambda: server.broker.meta.offsets["shop", "orders", 1] == 2)
        with pytest.raises(RequestRefused, match="receipt_stale"):
            service.dead_letter(bad, lambda _: None)
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"next")
        assert len((await behind).messages) == 1


async def test_a_reset_moves_a_group_that_pops(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server, "a", "b", "c")
        receipts = [one.receipt for one in (await receive(server)).messages]
        assert await acknowledge(server, *receipts) == [AckOutcome.ACKNOWLEDGED] * 3
        header = ResetOffsetHeader(
            consumer_group="shop", topic="orders", stored_at_ms=0, is_forced=True
        )
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert answer.code == ResponseCode.SUCCESS
        again = await receive(server)
        assert [one.receipt.offset for one in again.messages] == [0, 1, 2]


async def test_a_refused_reset_keeps_what_is_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server, "a")
        assert len((await receive(server)).messages) == 1
        await peer.ask(SEND, sending("orders", queue_id=2), b"b")
        # The first pop of another queue makes its position, so a reset must wait.
        popping = asyncio.ensure_future(receive(server, queue_id=2))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="group_changing"):
            server.broker.popping.places.reset("shop", "orders", {1: 0})
        assert len((await popping).messages) == 1
        assert (await receive(server)).messages == []


async def test_a_pop_is_refused_while_too_many_messages_are_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        await shop(server, "a", "b")
        service = server.broker.popping
        assert len((await receive(server, count_max=1)).messages) == 1
        service.taking.is_full = True
        assert (await receive(server)).status is ReceiveStatus.FULL
        service.taking.is_full = False
        monkeypatch.setattr(service.polls, "has_room", lambda _: False)
        assert len((await receive(server)).messages) == 1
        assert (await receive(server, wait_ms=1)).status is ReceiveStatus.FULL


async def test_an_answer_has_a_limit_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BYTES_MAX", 250)
    async with serving(tmp_path) as server:
        await shop(server, "x" * 100, "y" * 100, "z" * 500)
        sizes = [len((await receive(server)).messages) for _ in range(3)]
        assert sizes == [1, 1, 1]
        clock_of(server).advance(ms=INVISIBLE_MS)
        again = [one for _ in range(3) for one in (await receive(server)).messages]
        assert [one.receipt.attempt for one in again] == [2, 2, 2]


async def test_the_limit_of_bytes_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server, "x" * 100, "y" * 100)
        assert len((await receive(server, is_fifo=True)).messages) == 2
        await peer.ask(SEND, sending(), b"z")
        clock_of(server).advance(ms=INVISIBLE_MS)
        monkeypatch.setattr(taking, "BYTES_MAX", 350)
        (again,) = (await receive(server, is_fifo=True)).messages
        assert again.receipt.offset == 0
        assert await acknowledge(server, again.receipt) == [AckOutcome.ACKNOWLEDGED]
        rest = (await receive(server, is_fifo=True)).messages
        assert [one.receipt.offset for one in rest] == [1, 2]


@pytest.mark.parametrize("wait_ms", [0, 15_000])
async def test_a_filter_that_matches_little_finds_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    monkeypatch.setattr(taking, "EXAMINED_MAX", 2)
    async with serving(tmp_path) as server:
        peer = await shop(server)
        for number in range(30):
            tag = "wanted" if number == 25 else "other"
            await peer.ask(SEND, sending(properties={"TAGS": tag}), b"%d" % number)
        wanted = parse_filter("wanted")
        (found,) = (await receive(server, tags=wanted, wait_ms=wait_ms)).messages
        assert found.receipt.offset == 25
        assert (await receive(server, tags=wanted)).status is ReceiveStatus.EMPTY
        assert server.broker.popping.places.in_flight == 1
        assert await acknowledge(server, found.receipt) == [AckOutcome.ACKNOWLEDGED]
        await eventually(lambda: server.broker.meta.offsets["shop", "orders", 1] == 30)


async def test_the_queues_of_one_answer_share_a_limit_of_examined_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server)
        tags = parse_filter("none")
        for queue_id in (0, 1):
            await peer.ask(SEND, sending(queue_id=queue_id), b"a")
        await receive(server, tags=tags)
        for queue_id in (0, 1):
            await peer.ask(SEND, sending(queue_id=queue_id), b"b")
        monkeypatch.setattr(taking, "EXAMINED_MAX", 1)
        wanted = Receive(group="shop", topic="orders", invisible_ms=INVISIBLE_MS, tags=tags)
        take = server.broker.popping.taking.take
        took = [take(wanted, Group(name="shop"), (0, 1), 0) for _ in range(3)]
        assert [one.has_more for one in took] == [True, False, False]


async def test_the_event_loop_does_other_work_between_the_turns_of_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polls, "TRY_S", -1)
    async with serving(tmp_path) as server:
        peer = await shop(server, "a")
        tags = parse_filter("none")
        await receive(server, tags=tags)
        for _ in range(9):
            await peer.ask(SEND, sending(), b"b")
        monkeypatch.setattr(taking, "EXAMINED_MAX", 1)
        found = server.broker.popping.places.flights("shop", "orders", 1)
        assert found is not None
        waiting = [asyncio.ensure_future(receive(server, tags=tags, wait_ms=15_000)) for _ in "ab"]
        steps = [found[1].next]
        while steps[-1] < 10:
            await asyncio.sleep(0)
            steps.append(found[1].next)
        assert max(after - before for before, after in pairwise(steps)) == 2
        for one in waiting:
            one.cancel()


async def test_a_removed_group_begins_anew(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await shop(server, "a")
        (one,) = (await receive(server)).messages
        assert await acknowledge(server, one.receipt) == [AckOutcome.ACKNOWLEDGED]
        await server.broker.writer.submit(RemoveGroup(name="shop", by="me"))
        assert await acknowledge(server, one.receipt) == [AckOutcome.STALE]
        await beat(peer)
        assert len((await receive(server)).messages) == 1


async def test_retries_wait_as_rocketmqs_policy_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        group = Group(name="readers")
        delay_ms = server.broker.popping.retry_delay_ms
        delays = [delay_ms(group, attempt) for attempt in (1, 2, 3, 16, 99)]
        assert delays == [10_000, 30_000, 60_000, 7_200_000, 7_200_000]


def test_an_alarm_rings_once_at_the_earliest_time() -> None:
    alarms = Alarms()
    alarms.set("shop", 1, 50)
    alarms.set("shop", 1, 20)
    alarms.set("shop", 1, 30)
    alarms.set("shop", 2, 40)
    assert list(alarms.due(10)) == []
    assert list(alarms.due(45)) == [("shop", 1), ("shop", 2)]
    assert list(alarms.due(99)) == []
