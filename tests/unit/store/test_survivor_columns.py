"""The columns of survivors match the map while rows are added, changed and removed."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from escrowmq.store.reading.undecided_counts import standing
from escrowmq.store.table.dues import Dues
from escrowmq.store.table.survivor_columns import SurvivorColumns
from escrowmq.store.table.undecided import held_back, held_in, prepared_by_origin
from escrowmq.transaction.commands import Park, Resume
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half
from tests.unit.store.helpers import HOUR, MINUTE, Driver, message


def all_rows(driver: Driver) -> list[Half]:
    """Every row that the table knows, once each."""
    table = driver.store.table
    found = (table.get(row) for row in range(table.end))
    return [half for half in found if half is not None]


def assert_counted_as_listed(driver: Driver) -> None:
    """Check that counts by column equal counts over the rows one by one."""
    table = driver.store.table
    kept = list(table.kept())
    columns = table.kept_rows()
    is_row = columns.half_offsets() >= 0
    assert sorted(columns.half_offsets()[is_row].tolist()) == sorted(
        half.half_offset for half in kept
    )
    needed = [half for half in all_rows(driver) if half.is_needed]
    heads = [h for h in needed if h.state is State.PREPARED and h.next_at_ms != NEVER]
    undecided = Counter(half.queue for half in needed if half.state is State.PREPARED)
    parked = [half for half in needed if half.state is State.PARKED]
    timed = Counter(half.queue for half in needed if half.state is State.COMMITTED)
    assert table.needed == len(needed)
    assert table.needed_bytes == sum(half.size for half in needed)
    assert prepared_by_origin(table) == Counter(half.origin for half in heads)
    held = held_back(table)
    assert (held.undecided, held.timed) == (undecided, timed)
    found = held_in(table, list(driver.store.queues), 5)
    assert found.undecided == undecided + Counter(half.queue for half in parked)
    assert found.waiting == timed
    assert found.rows == [h.half_offset for h in needed if h.state is not State.COMMITTED][:5]
    stands = standing(driver.store)
    assert stands.undecided == len(heads)
    assert stands.oldest_undecided_at_ms == min((h.stored_at_ms for h in heads), default=None)
    later = driver.store.core.heads
    assert stands.parked == sum(
        bool(half.part & FIRST) and half.half_offset not in later for half in parked
    )
    now_ms = driver.clock.now_ms()
    look = Dues(table, driver.store.core.names).look(now_ms)
    assert (look.undecided, look.due) == (len(heads), sum(h.next_at_ms <= now_ms for h in heads))
    origins = {half.origin for half in needed}
    assert table.origins_needed(origins | {999}) == origins


def step(driver: Driver, rng: Random, number: int) -> None:
    """Do one random thing to some transaction."""
    needed = [half for half in all_rows(driver) if half.is_needed and half.part & FIRST]
    undecided = [half.half_offset for half in needed if half.state is State.PREPARED]
    parked = [half.half_offset for half in needed if half.state is State.PARKED]
    later = driver.store.core.heads
    match rng.randrange(12):
        case 0 | 1 | 2:
            delay_ms = rng.choice((0, HOUR))
            topic = rng.choice("ab")
            one = message("m", topic=topic, deliver_after_ms=delay_ms)
            driver.hold(f"t{number}", *[one] * rng.randrange(1, 3), group=rng.choice("pq"))
        case 3:
            driver.hold(f"t{number}", message("m"), number=0)
            driver.hold(f"t{number}", message("m"), number=1)
        case 4 | 5 | 8 | 9 | 10 if undecided:
            row = rng.choice(undecided)
            (driver.commit if rng.random() < 0.5 else driver.roll_back)(later.get(row, row))
        case 6 if undecided:
            row = rng.choice(undecided)
            driver.do(Park(half_offset=later.get(row, row), reason="why"))
        case 7 if parked:
            row = rng.choice(parked)
            driver.do(Resume(half_offset=later.get(row, row), by="me"))
        case _:
            driver.clock.advance(ms=rng.choice((1, MINUTE, HOUR)))


@pytest.mark.parametrize("seed", range(3))
def test_counts_by_column_are_those_of_the_rows(seed: int) -> None:
    driver, rng = Driver(), Random(seed)
    leaving = kept = 0
    for number in range(400):
        step(driver, rng, number)
        if number % 10 == 0:
            # Leaving chunks are in memory and in the map until the checkpoint is installed.
            job = driver.store.begin_checkpoint()
            leaving += bool(driver.store.table._leaving)
            step(driver, rng, 1_000 + number)
            assert_counted_as_listed(driver)
            job.write()
            driver.store.end_checkpoint(job)
        if number % 40 == 0:
            driver = driver.crashed() if number % 80 == 0 else driver.closed_and_opened()
        assert_counted_as_listed(driver)
        kept = max(kept, len(driver.store.table.survivors.rows))
    assert leaving
    assert kept


def test_slots_of_rows_that_are_gone_are_used_again() -> None:
    driver = Driver(segment_bytes_max=4_096)
    for number in range(200):
        row = driver.hold(f"t{number}", message("x" * 200)).half_offset
        driver.append(message("y" * 500))
        driver.clock.advance(ms=HOUR)
        if number >= 80:
            driver.commit(row - 80)
        driver.retain()
        driver.store.checkpoint()
    survivors = driver.store.table.survivors
    slots = len(survivors.columns.all().half_offsets())
    assert len(survivors.rows) <= slots < 150
    assert_counted_as_listed(driver)


def test_many_rows_have_a_slot_each() -> None:
    driver = Driver()
    half = driver.half(driver.hold("t").half_offset)
    columns = SurvivorColumns()
    for row in range(200):
        columns.set(msgspec.structs.replace(half, half_offset=row, queue=row))
    for row in range(100):
        columns.remove(row)
    for row in range(200, 250):
        columns.set(msgspec.structs.replace(half, half_offset=row, queue=row))
    rows = columns.all()
    is_row = rows.half_offsets() >= 0
    assert sorted(rows.half_offsets()[is_row].tolist()) == list(range(100, 250))
    assert (rows.half_offsets()[is_row] == rows.view("queue")[is_row]).all()
    assert rows.is_needed.tolist() == is_row.tolist()
    assert len(is_row) == 200
