"""Decisions in one frame: durable together, each found again, even with damage nearby."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from escrowmq.store import store as stores
from escrowmq.store.repair.tally import Tally
from escrowmq.transaction.records import DecidedMany, Span
from escrowmq.transaction.states import State
from tests.unit.store.damage import damaged, frame_of, repaired
from tests.unit.store.helpers import HOUR, MINUTE, Driver, message
from tests.unit.store.shop import Shop, frames_of

if TYPE_CHECKING:
    import pytest


def settled(count: int = 20) -> Driver:
    """Transactions over several chunks, all decided; every third is rolled back."""
    driver = Driver()
    for number in range(count):
        driver.hold(f"t{number}", message(f"m{number}", queue_id=number % 2))
    driver.obey(*((row, "commit" if row % 3 else "rollback") for row in range(count)), by="round 7")
    return driver


def test_they_are_visible_in_the_order_of_the_verdicts() -> None:
    driver = settled()
    assert driver.bodies(queue_id=0) == [f"m{row}" for row in range(0, 20, 2) if row % 3]
    assert driver.bodies(queue_id=1) == [f"m{row}" for row in range(1, 20, 2) if row % 3]
    assert driver.store.table.needed == 0


def test_each_has_its_decider_before_and_after_a_checkpoint_and_a_crash() -> None:
    driver = settled()
    decided_at_ms = driver.clock.now_ms()
    driver.commit(driver.hold("alone").half_offset, by="producer")
    before = driver.picture()
    starts: list[Callable[[], Driver]] = [lambda: driver, driver.crashed, driver.closed_and_opened]
    for start in starts:
        again = start()
        table = again.store.table
        assert table.decided_by(again.half(7)) == ("round 7", decided_at_ms)
        assert table.decided_by(again.half(20))[0] == "producer"
        assert again.picture() == before


def test_decisions_made_while_a_checkpoint_is_written_are_kept() -> None:
    driver = settled()
    later = [driver.hold(f"later {number}").half_offset for number in range(3)]
    job = driver.store.begin_checkpoint()
    driver.obey(*((row, "commit") for row in later), by="round 8")
    assert len(driver.store.table.ops) == 23
    # Decisions that are being written are still known.
    assert driver.store.table.decided_by(driver.half(0))[0] == "round 7"
    job.write()
    driver.store.end_checkpoint(job)
    assert len(driver.store.table.ops) == 3
    for again in (driver, driver.crashed()):
        assert again.store.table.decided_by(again.half(later[1]))[0] == "round 8"
        assert again.store.table.decided_by(again.half(0))[0] == "round 7"


def test_many_decisions_make_a_checkpoint_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "UNFILED_OPS_MAX", 20)
    assert settled(20).store.checkpoint_due
    driver = settled(19)
    assert not driver.store.checkpoint_due
    driver.commit(driver.hold("one more").half_offset)
    assert driver.store.checkpoint_due
    driver.store.checkpoint()
    assert not driver.store.checkpoint_due


def test_rows_that_outlive_their_chunk_are_left_and_carried_ones_are_shown() -> None:
    driver = Driver()
    old = driver.hold("old", message("old")).half_offset
    for number in range(8):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    young = [driver.hold(f"y{number}", message(f"y{number}")).half_offset for number in range(3)]
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [old]
    driver.roll_segment()
    driver.clock.advance(ms=24 * HOUR)
    driver.retain()
    assert driver.half(young[0]).location > driver.half(young[0]).log_offset
    # They were stored long ago, so a commit makes a copy and must be decided alone.
    said = [(row, "commit") for row in (old, *young)]
    assert driver.obey(*said) == ["left"] * 4
    assert driver.obey((young[1], "rollback"), (old, "rollback")) == ["rolled_back", "left"]
    again = driver.crashed(copy_after_ms=48 * HOUR, retention_ms=72 * HOUR)
    assert again.obey((young[0], "commit"), (young[2], "commit")) == ["committed"] * 2
    assert again.bodies() == ["y0", "y2"]
    assert again.crashed().bodies() == ["y0", "y2"]


def test_a_survivor_is_decided_by_a_replay_that_begins_before_it_left_its_chunk() -> None:
    driver = Driver()
    old = driver.hold("old", message("old")).half_offset
    for number in range(8):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.commit(driver.hold("young").half_offset)
    job = driver.store.begin_checkpoint()
    # The row is in both places now; it must be decided alone, or the map would miss the decision.
    assert driver.obey((old, "commit")) == ["left"]
    job.write()
    driver.store.end_checkpoint(job)
    driver.commit(old)
    assert driver.crashed().half(old).state is State.COMMITTED


def test_a_half_that_damage_took_leaves_its_place_and_the_others_keep_theirs() -> None:
    shop = Shop(seed=3)
    heads = [shop.prepare() for _ in range(8)]
    shop.store.sync()
    shop.obey(heads)
    decided = [shop.store.core.row(head).state for head in heads]
    assert set(decided) == {State.COMMITTED, State.ROLLED_BACK}
    shop.confirm()
    places = {head: shop.places(head) for head in heads}
    lost = heads[next(at for at, state in enumerate(decided) if state is State.COMMITTED)]
    store, _, _ = repaired(damaged(shop, frame_of(shop, lost)))
    shop.store = store
    for head, state in zip(heads, decided, strict=True):
        if head != lost:
            assert store.core.row(head).state is state
            assert shop.places(head) == places[head]


def test_damaged_decisions_are_found_and_their_transactions_do_not_come_twice() -> None:
    shop = Shop()
    heads = [shop.prepare() for _ in range(6)]
    shop.store.sync()
    decided_at = shop.store.log.end
    shop.obey(heads)
    shop.confirm()
    ends = {(queue.topic, queue.queue_id): queue.end for queue in shop.store.queues.values()}
    frame = next(one for one in frames_of(shop.store) if one.start == decided_at)
    store, _, done = repaired(damaged(shop, frame))
    assert len(done.filled) == 1
    assert {(queue.topic, queue.queue_id): queue.end for queue in store.queues.values()} == ends


def test_a_tally_counts_each_of_them() -> None:
    tally = Tally()
    committed, rolled_back = array("q", (0, 2)).tobytes(), array("q", (1,)).tobytes()
    tally.read([DecidedMany("settle", committed, rolled_back, [Span(0, 0, 2)])])
    counts = tally.counts()
    assert (counts.committed, counts.rolled_back, counts.visible) == (2, 1, 2)
