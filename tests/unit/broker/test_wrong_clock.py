"""A broker whose machine has, or had, the wrong time: nothing is lost, nothing comes early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.broker_clock import is_local
from escrowmq.broker.server import Server
from escrowmq.broker.status import status
from escrowmq.broker.store_time import Gap
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.bodies import LockRequest, Queue, encode_body
from escrowmq.protocol.client_bodies import ConsumerMembership, Heartbeat, Subscription
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import SendBackHeader
from escrowmq.protocol.ids import pack_host
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_hand_headers import ConfirmClockHeader
from escrowmq.protocol.own_headers import HoldHeader, ListTransactionsHeader, PagedHeader
from escrowmq.store.disk import OsDisk
from escrowmq.store.inspect import check
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Append
from escrowmq.transaction.records import KERNEL
from tests.unit.broker.own_peer import ask, sent
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    half,
    sending,
    serving,
    visible,
)
from tests.unit.store.helpers import message

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TEN_YEARS = 3_650 * DAY
RETRY = ("%RETRY%shop", 0)
DEAD = ("%DLQ%shop", 0)
SMALL = {
    "segment_bytes_max": 4_096,
    "retention_ms": 3 * DAY * 1_000,
    "copy_after_ms": 1_000,
    "durability": "os",
}


@pytest.fixture(params=[False, True], ids=["nobody vouches", "kernel vouches"])
def clock(request: pytest.FixtureRequest) -> ManualClock:
    """One of a machine that is synchronized, and one of a machine that is not."""
    return ManualClock(T0, synchronized=request.param)


async def jump(server: Server, clock: ManualClock, seconds: int) -> None:
    """Set the wall clock, and have the broker notice."""
    clock.jump(seconds=seconds)
    await server._look_at_clock()


async def passes(server: Server, clock: ManualClock, *, ms: int = 0, seconds: int = 0) -> None:
    """Let time pass, and what is due happen."""
    clock.advance(ms=ms, seconds=seconds)
    await server._look_at_clock()
    await server._release()


async def shop(server: Server) -> Peer:
    """A consumer."""
    peer = await Peer.to(server.broker_address)
    wants = ConsumerMembership(group="shop", subscriptions=(Subscription(topic="orders"),))
    said = Heartbeat(client_id="c1", consumers=(wants,))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said))
    return peer


async def send(peer: Peer, body: str, born_at_ms: int = T0, **properties: str) -> None:
    header = sending(properties=properties, born_at_ms=born_at_ms)
    assert (await peer.ask(SEND, header, body.encode())).code == ResponseCode.SUCCESS


async def give_back(peer: Peer, server: Server, topic: str, queue_id: int) -> None:
    (*_, last) = visible(server, topic, queue_id)
    header = SendBackHeader(log_offset=last.log_offset, consumer_group="shop", delay_level=0)
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SUCCESS


def seen(server: Server) -> list[str]:
    return [one.body.decode() for one in visible(server)]


# Two hours ahead for one message, and then corrected.


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
            # However often it looks, while time stands still nothing comes.
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


async def test_no_delay_is_shortened_by_a_clock_that_nobody_vouches_for(tmp_path: Path) -> None:
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


# Retention.


async def fill(server: Server, peer: Peer, count: int = 100) -> int:
    for number in range(count):
        await send(peer, f"{number:0200d}")
    assert len(server.broker.store.log.segments) > 3
    return kept(server)


def kept(server: Server) -> int:
    """How many messages there are."""
    queue = server.broker.reader.queue("orders", 1)
    return 0 if queue is None else queue.end - queue.start


async def test_four_days_ahead_during_retention_deletes_nothing_fresh(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await jump(server, clock, 4 * DAY)
        await server._retain()
        assert kept(server) == count
        await passes(server, clock, seconds=30 * MINUTE)
        await jump(server, clock, -4 * DAY)
        # They are less than three days old until then.
        for _ in range(71):
            await passes(server, clock, seconds=HOUR)
            await server._retain()
            assert kept(server) == count
        for _ in range(3):
            await passes(server, clock, seconds=HOUR)
        await server._retain()
        assert kept(server) < count // 4


async def test_four_days_ahead_at_the_run_itself_deletes_nothing_before_anybody_has_looked(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        clock.jump(seconds=4 * DAY)
        await server._retain()
        assert kept(server) == count


async def test_after_a_jump_of_ten_years_new_segments_still_age(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        await jump(server, clock, TEN_YEARS)
        await fill(server, peer)
        await passes(server, clock, seconds=2 * HOUR)
        await jump(server, clock, -TEN_YEARS)
    # Also over restarts, each of which finds the same gap.
    for _ in range(4):
        async with serving(tmp_path, clock, store=SMALL) as server:
            count = kept(server)
            await passes(server, clock, seconds=DAY)
    async with serving(tmp_path, clock, store=SMALL) as server:
        await passes(server, clock, seconds=2 * HOUR)
        await server._retain()
        assert kept(server) < count // 4
        peer = await shop(server)
        count = await fill(server, peer)
        await passes(server, clock, seconds=3 * DAY)
        await server._retain()
        assert kept(server) < count // 4


async def test_space_is_made_by_size_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = ManualClock(T0, synchronized=False)
    store = {**SMALL, "retention_bytes": 8_192}
    async with serving(tmp_path, clock, store=store) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await jump(server, clock, 4 * DAY)
        await server._retain()
        assert 0 < kept(server) < count // 2


# Starts.


async def test_after_a_stop_of_four_days_delays_and_checks_follow_at_once_and_deletion_waits(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=True)
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await send(peer, "later", TIMER_DELAY_MS=str(DAY * 1_000))
        await ask(peer, OwnCode.HOLD_HALVES, holding("t"), [sent()])
    clock.power_off(seconds=4 * DAY)
    async with serving(tmp_path, clock, store=SMALL) as server:
        assert server.broker.clock.now_ms() == clock.now_ms()
        peer = await shop(server)
        (undecided,) = (await ask(peer, OwnCode.LIST_TRANSACTIONS, undecided_ones())).rows
        assert undecided.age_ms >= 4 * DAY * 1_000
        assert undecided.wait_ms < 0
        await passes(server, clock)
        assert seen(server)[count:] == ["later"]
        await server._retain()
        await passes(server, clock, seconds=HOUR, ms=-1)
        await server._retain()
        assert kept(server) == count + 1
        assert status(server.broker).deletion_waits == "store time moved less than an hour ago"
        await passes(server, clock, ms=1)
        await server._retain()
        assert kept(server) < count // 4


def holding(transaction_id: str) -> HoldHeader:
    return HoldHeader(producer_group="pay", transaction_id=transaction_id, number=0)


def undecided_ones() -> ListTransactionsHeader:
    return ListTransactionsHeader(states="prepared")


async def test_a_clock_four_days_ahead_at_start_that_nobody_vouches_for_changes_nothing(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await send(peer, "later", TIMER_DELAY_MS=str(30 * MINUTE * 1_000))
    clock.power_off(seconds=4 * DAY)
    async with serving(tmp_path, clock, store=SMALL) as server:
        assert server.broker.clock.time.gap is Gap.AHEAD
        await passes(server, clock, seconds=29 * MINUTE)
        await server._retain()
        assert kept(server) == count
        told = status(server.broker)
        assert (told.clock_gap, told.is_clock_doubtful) == ("ahead", True)
        assert told.deletion_waits == "the wall clock is ahead and nobody vouches for it"
        await passes(server, clock, seconds=MINUTE)
        assert seen(server)[count:] == ["later"]


async def test_the_boot_clock_tells_how_long_a_broker_was_away_whatever_the_wall_clock_says(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await send(peer, "later", TIMER_DELAY_MS=str(DAY * 1_000))
    clock.advance(seconds=DAY)
    clock.jump(seconds=TEN_YEARS)
    async with serving(tmp_path, clock) as server:
        assert server.broker.clock.now_ms() == T0 + DAY * 1_000
        await passes(server, clock)
        assert seen(server) == ["later"]
        assert server.broker.clock.time.gap is Gap.AHEAD


async def test_a_restart_within_the_hour_does_not_shorten_it(tmp_path: Path) -> None:
    clock = ManualClock(T0, synchronized=True)
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await jump(server, clock, 4 * DAY)
        await passes(server, clock, seconds=50 * MINUTE)
    for _ in range(2):
        async with serving(tmp_path, clock, store=SMALL) as server:
            (moved,) = [server.broker.store.core.time_moved]
            assert moved is not None
            assert (moved.why, moved.to_ms - moved.from_ms) == (KERNEL, 4 * DAY * 1_000)
            await passes(server, clock, seconds=5 * MINUTE)
            await server._retain()
            assert kept(server) == count
    assert not check(OsDisk(tmp_path / "store")).is_damaged


async def test_a_broker_that_was_suspended_for_an_hour_keeps_its_sessions_and_has_no_gap(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        wanted = LockRequest(
            consumer_group="shop",
            client_id="c1",
            queues=(Queue(topic="orders", broker_name="broker-a", queue_id=1),),
        )
        await peer.ask(RequestCode.LOCK_BATCH_MQ, body=encode_body(wanted))
        await send(peer, "later", TIMER_DELAY_MS=str(HOUR * 1_000))
        clock.suspend(seconds=HOUR)
        await passes(server, clock)
        assert seen(server) == ["later"]
        told = status(server.broker)
        assert (told.clock_gap, told.clock_gap_ms, told.deletion_waits) == ("none", 0, "")
        await server._sweep()
        assert server.broker.offsets.has_locks("shop")
        assert server.broker.clients.consumer_groups() == ["shop"]


async def test_sessions_and_locks_do_not_mind_where_the_wall_clock_is(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock) as server:
        await shop(server)
        for seconds in (DAY, -DAY, -DAY):
            await jump(server, clock, seconds)
            await server._sweep()
            assert server.broker.clients.consumer_groups() == ["shop"]
        await passes(server, clock, seconds=121)
        await server._sweep()
        assert server.broker.clients.consumer_groups() == []


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


async def test_an_absolute_time_of_a_clock_that_nobody_else_has_never_comes_early(
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


# Who vouches.


async def born(server: Server, address: str, at_ms: int, **fields: int) -> None:
    """A message that comes from there."""
    host = pack_host(address, 5_000)
    made = message(born_host=host, born_at_ms=at_ms, **fields)
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
        # The time of a retry is when it was first sent; and who goes by the old time says no.
        await born(server, "192.0.2.2", now_ms, reconsume_times=1)
        await born(server, "192.0.2.3", T0)
        await server._look_at_clock()
        assert (time.gap, time.witnesses) == (Gap.AHEAD, 1)
        await born(server, "2001:db8::1", now_ms + 59_999)
        await server._look_at_clock()
        assert (time.gap, server.broker.clock.now_ms()) == (Gap.NONE, now_ms)
        assert server.broker.store.core.time_moved is not None
        assert server.broker.store.core.time_moved.why == "clients"
        # It costs nothing again.
        assert server.broker.writer.on_durable == unwatched


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
            await ask(peer, OwnCode.CONFIRM_CLOCK, header)
        await jump(server, clock, 4 * DAY)
        told = (await ask(peer, OwnCode.STATUS)).header
        assert (told.clock_gap, told.clock_gap_ms) == ("ahead", 4 * DAY * 1_000)
        # What a person has seen of another gap is no word on this one.
        with pytest.raises(RequestRefused, match="clock_gap_changed"):
            await ask(peer, OwnCode.CONFIRM_CLOCK, header)
        header = ConfirmClockHeader(gap_ms=told.clock_gap_ms, by="ann@ops")
        done = (await ask(peer, OwnCode.CONFIRM_CLOCK, header)).header
        assert (done.from_ms, done.to_ms) == (T0, clock.now_ms())
        assert done.deletion_waits_ms == HOUR * 1_000
        await passes(server, clock)
        assert seen(server) == ["later"]
        told = (await ask(peer, OwnCode.STATUS)).header
        assert (told.clock_gap, told.is_clock_doubtful) == ("none", False)
        record = server.broker.store.core.time_moved
        assert record is not None
        assert (record.why, record.by) == ("person", "ann@ops")


# What else goes by store time.


@asynccontextmanager
async def ahead(path: Path) -> AsyncIterator[tuple[Server, ManualClock, Peer]]:
    clock = ManualClock(T0, synchronized=False)
    async with serving(path, clock) as server:
        peer = await shop(server)
        await jump(server, clock, 4 * DAY)
        yield server, clock, peer


async def test_facts_and_deadlines_are_by_store_time(tmp_path: Path) -> None:
    async with ahead(tmp_path) as (server, clock, peer):
        await ask(peer, OwnCode.HOLD_HALVES, holding("t"), [sent()])
        await passes(server, clock, seconds=1)
        listed = await ask(peer, OwnCode.LIST_TRANSACTIONS, undecided_ones())
        assert listed.header.now_ms == T0 + 1_000
        assert listed.rows[0].age_ms == 1_000
        assert listed.rows[0].stored_at_ms == T0


async def test_the_status_tells_ages_by_store_time_and_what_the_wall_clock_says(
    tmp_path: Path,
) -> None:
    async with ahead(tmp_path) as (server, clock, peer):
        await ask(peer, OwnCode.HOLD_HALVES, holding("t"), [sent()])
        await passes(server, clock, seconds=5)
        told = status(server.broker)
        assert (told.now_ms, told.wall_ms) == (T0 + 5_000, clock.now_ms())
        assert (told.uptime_ms, told.oldest_undecided_age_ms) == (5_000, 5_000)
        groups = (await ask(peer, OwnCode.LIST_GROUPS, PagedHeader())).rows
        assert [row.heard_at_ms for row in groups] == [T0]


async def test_a_wrong_clock_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        for seconds in (4 * DAY, 0, -4 * DAY, 0, -DAY, 0):
            await jump(server, clock, seconds)
            await asyncio.sleep(0)
    told = [one.message for one in caplog.records if one.message.startswith("clock_")]
    assert told == ["clock_ahead", "clock_agrees", "clock_behind"]
