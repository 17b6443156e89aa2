"""A broker whose machine has or had the wrong time: no message is lost or comes early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.broker.write.broker_clock import is_local
from escrowmq.broker.write.store_time import ClockGap
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.ids import pack_host
from escrowmq.protocol.native.headers import PagedHeader
from escrowmq.protocol.native.operator_headers import ConfirmClockHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Append, Prepare
from tests.unit.broker.clocked import (
    DAY,
    DEAD,
    HOUR,
    MINUTE,
    RETRY,
    give_back,
    holding,
    jump,
    passes,
    seen,
    send,
    shop,
    undecided_ones,
)
from tests.unit.broker.native_peer import ask, sent
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    half,
    serving,
    visible,
)
from tests.unit.columns import columns_of
from tests.unit.logged import event_of
from tests.unit.store.helpers import message


@pytest.fixture(params=[False, True], ids=["nobody vouches", "kernel vouches"])
def clock(request: pytest.FixtureRequest) -> ManualClock:
    """Clock of a machine, once synchronized and once not."""
    return ManualClock(T0, synchronized=request.param)


# The clock is two hours ahead for one message, and then corrected.


async def test_no_retry_comes_early_after_a_clock_was_ahead_for_one_message(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, 2 * HOUR)
        await send(peer, "while it is ahead")
        await jump(server, clock, -2 * HOUR)
        await give_back(peer, server, "orders", 1)
        for retry in range(1, 4):
            # While time stands still, the broker releases nothing, however often it looks.
            for _ in range(20):
                await passes(server, clock)
            assert len(visible(server, *RETRY)) == retry - 1
            await passes(server, clock, seconds=10 * MINUTE)
            assert len(visible(server, *RETRY)) == retry
            await give_back(peer, server, *RETRY)
        assert visible(server, *DEAD) == []


async def test_a_delay_of_thirty_minutes_stays_one_after_a_clock_was_ahead(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, 2 * HOUR)
        await send(peer, "while it is ahead")
        await jump(server, clock, -2 * HOUR)
        await send(peer, "later", TIMER_DELAY_MS=str(30 * MINUTE * 1_000))
        await passes(server, clock, seconds=30 * MINUTE, ms=-1)
        assert seen(server) == ["while it is ahead"]
        await passes(server, clock, ms=1)
        assert seen(server) == ["while it is ahead", "later"]


async def test_a_clock_without_a_witness_shortens_no_delay(tmp_path: Path) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await send(peer, "later", TIMER_DELAY_MS=str(30 * MINUTE * 1_000))
        held = await peer.ask(SEND, half("t", TIMER_DELAY_MS="60000"), b"committed later")
        await jump(server, clock, 4 * DAY)
        await peer.ask(END, ending(held, COMMIT))
        await passes(server, clock, seconds=59)
        assert seen(server) == []
        await passes(server, clock, seconds=1)
        assert seen(server) == ["committed later"]
        await passes(server, clock, seconds=29 * MINUTE)
        assert seen(server) == ["committed later", "later"]


async def test_delays_and_retries_go_on_when_the_clock_is_set_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await send(peer, "later", TIMER_DELAY_MS="60000")
        await jump(server, clock, -2 * HOUR)
        await send(peer, "much later", TIMER_DELAY_MS="120000")
        await passes(server, clock, seconds=59)
        assert seen(server) == []
        await passes(server, clock, seconds=1)
        assert seen(server) == ["later"]
        await passes(server, clock, seconds=60)
        assert seen(server) == ["later", "much later"]


# Absolute delivery times.


@pytest.mark.parametrize("wrong_s", [2 * HOUR, -2 * HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("is_sender_wrong", [False, True], ids=["sender right", "sender wrong"])
async def test_an_absolute_delivery_time_is_by_the_clock_of_its_sender(
    tmp_path: Path, *, wrong_s: int, is_sender_wrong: bool
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, wrong_s)
        born_at_ms = clock.now_ms() if is_sender_wrong else T0
        deliver_at_ms = born_at_ms + 30 * MINUTE * 1_000
        await send(peer, "at", born_at_ms, TIMER_DELIVER_MS=str(deliver_at_ms))
        await passes(server, clock, seconds=30 * MINUTE, ms=-1)
        assert seen(server) == []
        await passes(server, clock, ms=1)
        assert seen(server) == ["at"]


async def test_an_absolute_time_of_a_lone_clock_never_comes_early(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, 2 * HOUR)
        at_ms = T0 + 30 * MINUTE * 1_000
        await send(peer, "at", T0 - DAY * 1_000, TIMER_DELIVER_MS=str(at_ms))
        await passes(server, clock, seconds=30 * MINUTE, ms=-1)
        assert seen(server) == []
        await passes(server, clock, ms=1)
        assert seen(server) == ["at"]


# Confirmation of a clock.


async def born(server: Server, address: str, at_ms: int, **fields: int) -> None:
    """Store a message that comes from this address."""
    host = pack_host(address, 5_000)
    made = msgspec.structs.replace(message(), born_host=host, born_at_ms=at_ms, **fields)
    await server.broker.writer.submit(Append(messages=(made,)))


async def test_two_client_hosts_vouch_for_a_clock_and_neither_one_nor_this_host(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        time, unwatched = server.broker.clock.time, server.broker.writer.on_durable
        await jump(server, clock, 4 * DAY)
        assert server.broker.writer.on_durable != unwatched
        now_ms = clock.now_ms()
        for address in ("127.0.0.1", "127.0.0.2", "192.0.2.1", "192.0.2.1"):
            await born(server, address, now_ms)
        # A retry keeps the time of its first send, and a host with the old time is no witness.
        await born(server, "192.0.2.2", now_ms, reconsume_times=1)
        await born(server, "192.0.2.3", T0)
        await server._look_at_clock()
        assert (time.gap, time.witnesses) == (ClockGap.AHEAD, 1)
        await born(server, "2001:db8::1", now_ms + 59_999)
        await server._look_at_clock()
        assert (time.gap, server.broker.clock.now_ms()) == (ClockGap.NONE, now_ms)
        assert server.broker.store.core.time_moved is not None
        assert server.broker.store.core.time_moved.why == "clients"
        # The broker no longer examines each batch for witnesses.
        assert server.broker.writer.on_durable == unwatched


async def test_a_bulk_request_of_a_spark_job_is_a_witness_too(tmp_path: Path) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        await jump(server, clock, 4 * DAY)
        for number in range(2):
            host = pack_host(f"192.0.2.{number}", 5_000)
            made = msgspec.structs.replace(
                message(unique_key="k"), born_host=host, born_at_ms=clock.now_ms()
            )
            command = Prepare(
                group="pay", transaction_id=f"t{number}", messages=(), columns=columns_of([made])
            )
            await server.broker.writer.submit(command)
        await server._look_at_clock()
        assert server.broker.clock.now_ms() == clock.now_ms()


def test_an_address_of_this_machine_is_known() -> None:
    assert is_local(pack_host("127.0.0.1", 1)[:-4])
    assert not is_local(pack_host("192.0.2.1", 1)[:-4])
    assert not is_local(pack_host("2001:db8::1", 1)[:-4])


async def test_a_person_confirms_the_clock(tmp_path: Path) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await send(peer, "later", TIMER_DELAY_MS=str(DAY * 1_000))
        header = ConfirmClockHeader(gap_ms=0, by="ann@ops")
        with pytest.raises(RequestRefused, match="clock_not_doubted"):
            await ask(peer, NativeCode.CONFIRM_CLOCK, header)
        await jump(server, clock, 4 * DAY)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.clock_gap, told.clock_gap_ms) == ("ahead", 4 * DAY * 1_000)
        # A confirmation of another gap is not valid for this one.
        with pytest.raises(RequestRefused, match="clock_gap_changed"):
            await ask(peer, NativeCode.CONFIRM_CLOCK, header)
        header = ConfirmClockHeader(gap_ms=told.clock_gap_ms, by="ann@ops")
        done = (await ask(peer, NativeCode.CONFIRM_CLOCK, header)).header
        assert (done.from_ms, done.to_ms) == (T0, clock.now_ms())
        assert done.deletion_waits_ms == HOUR * 1_000
        await passes(server, clock)
        assert seen(server) == ["later"]
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.clock_gap, told.is_clock_doubtful) == ("none", False)
        record = server.broker.store.core.time_moved
        assert record is not None
        assert (record.why, record.by) == ("person", "ann@ops")


# Other times that follow store time.


@asynccontextmanager
async def ahead(path: Path) -> AsyncIterator[tuple[Server, ManualClock, Peer]]:
    clock = ManualClock(T0, synchronized=False)
    async with serving(path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, 4 * DAY)
        yield server, clock, peer


async def test_facts_and_deadlines_are_by_store_time(tmp_path: Path) -> None:
    async with ahead(tmp_path) as (server, clock, peer):
        await ask(peer, NativeCode.HOLD_HALVES, holding("t"), [sent()])
        await passes(server, clock, seconds=1)
        listed = await ask(peer, NativeCode.LIST_TRANSACTIONS, undecided_ones())
        assert listed.header.now_ms == T0 + 1_000
        assert listed.rows[0].age_ms == 1_000
        assert listed.rows[0].stored_at_ms == T0


async def test_the_status_tells_ages_by_store_time_and_what_the_wall_clock_says(
    tmp_path: Path,
) -> None:
    async with ahead(tmp_path) as (server, clock, peer):
        await ask(peer, NativeCode.HOLD_HALVES, holding("t"), [sent()])
        await passes(server, clock, seconds=5)
        told = status(server.broker)
        assert (told.now_ms, told.wall_ms) == (T0 + 5_000, clock.now_ms())
        assert (told.uptime_ms, told.oldest_undecided_age_ms) == (5_000, 5_000)
        groups = (await ask(peer, NativeCode.LIST_GROUPS, PagedHeader())).rows
        assert [row.heard_at_ms for row in groups] == [T0]


async def test_a_wrong_clock_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        for seconds in (4 * DAY, 0, -4 * DAY, 0, -DAY, 0):
            await jump(server, clock, seconds)
            await asyncio.sleep(0)
    told = [event_of(one) for one in caplog.records if event_of(one).startswith("clock_")]
    assert told == ["clock_ahead", "clock_agrees", "clock_behind"]


@pytest.mark.parametrize("count", [1, 500], ids=["one by one", "by the column"])
async def test_half_messages_wait_by_their_senders_clock_too(tmp_path: Path, count: int) -> None:
    async with ahead(tmp_path) as (server, _, peer):
        at_ms = T0 + 60_000
        rows = [sent(UNIQ_KEY=f"k{number}", TIMER_DELIVER_MS=str(at_ms)) for number in range(count)]
        await ask(peer, NativeCode.HOLD_HALVES, holding("t"), rows)
        assert set(server.broker.store.core.delays.values()) == {60_000}
        assert len(server.broker.store.core.delays) == count
