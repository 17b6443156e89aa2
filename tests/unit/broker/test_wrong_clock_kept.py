"""Deletion, and state kept across starts, while a machine has the wrong time."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.native.status import status
from escrowmq.broker.write.store_time import ClockGap
from escrowmq.model.clock import read
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.bodies import LockRequest, QueueName, encode_body
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.inspect import check
from escrowmq.store.retention.retirement import Waits
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.records import KERNEL
from tests.unit.broker.clocked import (
    DAY,
    HOUR,
    MINUTE,
    SMALL,
    TEN_YEARS,
    fill,
    holding,
    jump,
    kept,
    passes,
    seen,
    send,
    shop,
    undecided_ones,
)
from tests.unit.broker.native_peer import ask, sent
from tests.unit.broker.wire import (
    T0,
    serving,
)


@pytest.fixture(params=[False, True], ids=["nobody vouches", "kernel vouches"])
def clock(request: pytest.FixtureRequest) -> ManualClock:
    """Clock of a machine, once synchronized and once not."""
    return ManualClock(T0, synchronized=request.param)


# Retention.


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
        # The messages are less than three days old during these 71 hours.
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


async def test_a_run_of_retention_stops_when_the_clock_turns_out_to_be_wrong(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=True)
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        for number in range(3):
            # Segments that hold undecided transactions are deleted one by one.
            await ask(peer, NativeCode.HOLD_HALVES, holding(f"t{number}"), [sent()])
            await fill(server, peer)
        count = kept(server)
        await jump(server, clock, 4 * DAY)
        await passes(server, clock, seconds=HOUR)
        retaining, asked = server.broker.retaining, []
        may_delete = retaining.may_delete

        def corrected() -> bool:
            asked.append(may_delete())
            if len(asked) == 1:
                clock.jump(seconds=-4 * DAY)
                server.broker.clock.time.look(read(clock))
            return asked[-1]

        retaining.may_delete = corrected
        await retaining.run()
        assert asked == [True, False]
        assert retaining.waits is Waits.FOR_PERMISSION
        assert count // 2 < kept(server) < count


async def test_after_a_jump_of_ten_years_new_segments_still_age(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        await jump(server, clock, TEN_YEARS)
        count = await fill(server, peer)
        await passes(server, clock, seconds=2 * HOUR)
        await jump(server, clock, -TEN_YEARS)
    # This also holds across restarts, each of which finds the same gap.
    for _ in range(4):
        async with serving(tmp_path, clock, store=SMALL) as server:
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
        await ask(peer, NativeCode.HOLD_HALVES, holding("t"), [sent()])
    clock.power_off(seconds=4 * DAY)
    async with serving(tmp_path, clock, store=SMALL) as server:
        assert server.broker.clock.now_ms() == clock.now_ms()
        told = status(server.broker)
        assert (told.started_at_ms, told.uptime_ms) == (clock.now_ms(), 0)
        peer = await shop(server)
        (undecided,) = (await ask(peer, NativeCode.LIST_TRANSACTIONS, undecided_ones())).rows
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


async def test_a_clock_four_days_ahead_at_start_without_a_witness_changes_nothing(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock, store=SMALL) as server:
        peer = await shop(server)
        count = await fill(server, peer)
        await send(peer, "later", TIMER_DELAY_MS=str(30 * MINUTE * 1_000))
    clock.power_off(seconds=4 * DAY)
    async with serving(tmp_path, clock, store=SMALL) as server:
        assert server.broker.clock.time.gap is ClockGap.AHEAD
        await passes(server, clock, seconds=29 * MINUTE)
        await server._retain()
        assert kept(server) == count
        told = status(server.broker)
        assert (told.clock_gap, told.is_clock_doubtful) == ("ahead", True)
        assert told.deletion_waits == "the wall clock is ahead, and no second source confirms it"
        await passes(server, clock, seconds=MINUTE)
        assert seen(server)[count:] == ["later"]


async def test_a_start_that_makes_meta_db_anew_does_not_write_at_a_wrong_time(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0, synchronized=False)
    async with serving(tmp_path, clock) as server:
        peer = await shop(server)
        await send(peer, "kept")
    (tmp_path / "meta.db").unlink()
    clock.power_off(seconds=4 * DAY)
    async with serving(tmp_path, clock) as server:
        assert server.broker.store.last_at_ms < T0 + 1_000
        assert server.broker.clock.time.gap is ClockGap.AHEAD


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
        assert server.broker.clock.time.gap is ClockGap.AHEAD


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
            queues=(QueueName(topic="orders", broker_name="broker-a", queue_id=1),),
        )
        await peer.ask(RequestCode.LOCK_BATCH_MQ, body=encode_body(wanted))
        await send(peer, "later", TIMER_DELAY_MS=str(HOUR * 1_000))
        clock.suspend(seconds=HOUR)
        await passes(server, clock)
        assert seen(server) == ["later"]
        told = status(server.broker)
        assert (told.clock_gap, told.clock_gap_ms, told.deletion_waits) == ("none", 0, "")
        await server._sweep()
        assert server.broker.locks.has_any("shop")
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
