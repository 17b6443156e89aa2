"""The seed determines the schedule of faults, and every kind of fault occurs."""

from __future__ import annotations

import pytest

from escrowmq.demo.schedule import (
    BROKER_KILLS_MAX,
    DELAY_MS_MAX,
    Moment,
    Victim,
    draw,
    from_outside,
    self_kills,
    sends_first,
)


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw(orders=2_000, kills=8, seed=7) == draw(orders=2_000, kills=8, seed=7)
    assert draw(orders=2_000, kills=8, seed=7) != draw(orders=2_000, kills=8, seed=8)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kills", [0, 1, 4, 8, 50])
@pytest.mark.parametrize("orders", [100, 1_000])
def test_faults_are_spread_over_the_orders(seed: int, kills: int, orders: int) -> None:
    faults = draw(orders=orders, kills=kills, seed=seed)
    places = [fault.at_order for fault in faults]
    assert len(places) == kills
    assert places == sorted(places)
    assert len(set(places)) == kills, "an order at which the service dies twice would be one death"
    assert all(orders // 20 <= place < orders - orders // 10 for place in places)
    assert all(0 <= fault.delay_ms <= DELAY_MS_MAX for fault in faults)


def test_one_fault_is_one_that_loses_a_plain_message() -> None:
    (fault,) = draw(orders=100, kills=1, seed=1)
    assert (fault.victim, fault.moment) == (Victim.SERVICE, Moment.AFTER_COMMIT)


def test_four_faults_are_one_of_each_kind() -> None:
    faults = draw(orders=100, kills=4, seed=1)
    assert {(fault.victim, fault.moment) for fault in faults} == {
        (Victim.SERVICE, Moment.AFTER_COMMIT),
        (Victim.SERVICE, Moment.BEFORE_COMMIT),
        (Victim.SERVICE, Moment.RANDOM),
        (Victim.BROKER, Moment.RANDOM),
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_death_before_a_commit_hits_an_order_whose_message_has_left(seed: int) -> None:
    faults = draw(orders=1_000, kills=8, seed=seed)
    before = self_kills(faults, Moment.BEFORE_COMMIT)
    assert before
    assert all(sends_first(order) for order in before)


def test_the_broker_is_killed_a_few_times_at_most() -> None:
    faults = draw(orders=5_000, kills=50, seed=3)
    assert sum(fault.victim is Victim.BROKER for fault in faults) == BROKER_KILLS_MAX


def test_every_fault_is_seen_to_by_the_service_or_from_outside() -> None:
    faults = draw(orders=1_000, kills=8, seed=5)
    before = self_kills(faults, Moment.BEFORE_COMMIT)
    after = self_kills(faults, Moment.AFTER_COMMIT)
    assert len(before) + len(after) + len(from_outside(faults)) == len(faults)
    assert not before & after
