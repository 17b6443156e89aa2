"""What every state store promises: it has what the log has flushed, and the log wins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from escrowmq.store.states.follower import Follower
from escrowmq.transaction.commands import CheckSent, Park, Resume
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import NEVER, Lost
from escrowmq.transaction.state_store import StatePosition, WantedStates
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, Driver, message
from tests.unit.store.state_stores import KINDS, driver_of, follower_of, must_agree, step

pytestmark = pytest.mark.parametrize("kind", KINDS)


def mixed(driver: Driver) -> None:
    """Bring the store every kind of row and change."""
    for number in range(12):
        driver.hold(f"t{number}")
    driver.hold("many", *(message(f"m{number}") for number in range(3)), number=0)
    driver.hold("many", message("m4"), message("m5"), number=1)
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    for row in range(4):
        driver.commit(row)
    driver.roll_back(4)
    driver.obey((5, "commit"), (6, "rollback"))
    driver.do(CheckSent(half_offset=7, client="c"))
    driver.do(Park(half_offset=8, reason="person"))
    driver.do(Park(half_offset=12, reason="person"))
    driver.do(Park(half_offset=9, reason="person"))
    driver.do(Resume(half_offset=9, by="operator"))


def test_it_has_every_change_that_was_flushed(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    assert must_agree(driver) == []
    mixed(driver)
    assert must_agree(driver) == [7, 8, 9, 10, 11, 12]
    driver.commit(12)
    assert must_agree(driver) == [7, 8, 9, 10, 11]
    assert follower_of(driver).disagreed == 0


@pytest.mark.parametrize("how", ["closed", "crashed", "rebuilt"])
def test_it_agrees_after_a_restart(kind: str, how: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    driver = driver.restarted(how)
    assert must_agree(driver) == [7, 8, 9, 10, 11, 12]
    driver.commit(7)
    driver = driver.restarted(how)
    assert must_agree(driver) == [8, 9, 10, 11, 12]
    assert follower_of(driver).disagreed == 0


def test_an_attempt_of_a_spark_batch_leaves_with_its_batch(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    first = driver.hold("a", message("a0"), message("a1"), number=0, bulk=True).half_offset
    driver.hold("a", message("a2"), number=1, bulk=True)
    assert must_agree(driver) == [first]
    driver.decide_batch(1, ("a", 1, 3))
    assert must_agree(driver) == []
    assert follower_of(driver).disagreed == 0


def test_a_scan_finds_what_is_due_page_by_page(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    states = follower_of(driver).states
    for number in range(20):
        driver.hold(f"t{number}")
        driver.clock.advance(ms=1_000)
    begun_ms = driver.half(0).stored_at_ms
    due = WantedStates(limit=3, check_at_ms=begun_ms + 6_000 + 4_000)
    page = states.scan(due)
    assert (page.half_offsets.tolist(), page.next_first) == ([0, 1, 2], 3)
    page = states.scan(WantedStates(first=3, limit=3, check_at_ms=due.check_at_ms))
    assert (page.half_offsets.tolist(), page.next_first) == ([3, 4], None)
    old = WantedStates(limit=50, check_at_ms=0, stored_at_ms=begun_ms + 9_000)
    assert states.scan(old).half_offsets.tolist() == list(range(10))
    driver.do(Park(half_offset=15, reason="person"))
    driver.commit(18)
    parked = WantedStates(limit=50, states=(State.PARKED,))
    assert states.scan(parked).half_offsets.tolist() == [15]
    due_by = {"check_at_ms": begun_ms + HOUR, "stored_at_ms": begun_ms + 15_000}
    parked = WantedStates(limit=50, states=(State.PARKED,), **due_by)
    assert states.scan(parked).half_offsets.tolist() == [15]
    both = WantedStates(first=13, limit=50, states=(State.PREPARED, State.PARKED), **due_by)
    assert states.scan(both).half_offsets.tolist() == [13, 14, 15, 16, 17, 19]
    # A parked transaction has no next check, so only its age can make it due.
    unaged = WantedStates(limit=50, states=(State.PARKED,), check_at_ms=begun_ms + HOUR)
    assert states.scan(unaged).half_offsets.tolist() == []
    every = WantedStates(first=14, end=19, limit=50, states=(State.PREPARED, State.PARKED))
    assert states.scan(every).half_offsets.tolist() == [14, 15, 16, 17]


def test_the_low_water_mark_passes_what_is_decided(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    states = follower_of(driver).states
    for number in range(20):
        driver.hold(f"t{number}")
    assert states.low_water() == 0
    for row in (0, 1, 2, 5):
        driver.commit(row)
    assert states.low_water() == 3
    for row in {*range(20)} - {0, 1, 2, 5}:
        driver.commit(row)
    assert states.low_water() == 20
    assert states.parts_held() == ([16] if kind == "mapped" else [])


def test_it_agrees_after_retention_carried_rows_forward(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path, retention_ms=2 * HOUR)
    held = driver.hold("held").half_offset
    for number in range(20):
        driver.commit(driver.hold(f"t{number}").half_offset)
    driver.roll_segment()
    driver.clock.advance(ms=3 * HOUR)
    driver.append()
    assert driver.retain().segments
    assert must_agree(driver) == [held]
    for how in ("closed", "crashed"):
        driver = driver.restarted(how)
        assert must_agree(driver) == [held]
        assert follower_of(driver).disagreed == 0
    driver.commit(held)
    assert must_agree(driver) == []


def test_retention_never_passes_its_position(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path, retention_ms=2 * HOUR)
    driver.append()
    first = driver.store.log.start
    driver.roll_segment()
    driver.clock.advance(ms=3 * HOUR)
    driver.append()
    follower = follower_of(driver)
    follower.position = StatePosition("", first, 0)
    follower.verify()
    driver.retain()
    assert driver.store.log.start == first
    follower.follow_all()
    driver.retain()
    assert driver.store.log.start > first


def test_the_position_moves_without_a_transaction(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.store.states.follower.POSITION_BYTES", 1_000)
    driver = driver_of(kind, tmp_path)
    follower = follower_of(driver)
    driver.append(message(bytes(1_500)))
    assert follower.position is not None
    assert follower.position.log_offset == driver.store.durable_end > 0


def test_a_large_backlog_is_handed_over_in_batches(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.store.states.follower.BATCH_ROWS", 5)
    monkeypatch.setattr("escrowmq.store.states.notes.BATCH_ROWS", 5)
    driver = driver_of(kind, tmp_path)
    store = driver.store
    follower, store.follower = follower_of(driver), None
    mixed(driver)
    store.follower = follower
    assert follower.lag_rows > 17
    follower.follow_all()
    assert must_agree(driver) == [7, 8, 9, 10, 11, 12]
    store.follower = None
    for row in (7, 8, 10, 11, 12):
        driver.commit(row)
    driver.do(CheckSent(half_offset=9, client="c"))
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [9]
    assert follower.disagreed == 0


def test_beyond_the_limit_of_notes_it_is_made_equal_as_a_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.store.states.notes.NOTES_MAX", 3)
    driver = driver_of(kind, tmp_path)
    store = driver.store
    mixed(driver)
    follower, store.follower = follower_of(driver), None
    for row in (7, 8, 9, 10, 11):
        driver.commit(row)
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [12]


def test_changes_while_it_is_made_equal_are_not_lost(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    store = driver.store
    follower, store.follower = follower_of(driver), None
    states = follower.states
    again = Follower(store, states, follower._claim)
    again.notes.listen(store._appliers)
    step(again)
    step(again)
    driver.commit(7)
    for new in (1, 9):
        step(again)
        driver.commit(driver.hold(f"new{new}").half_offset)
        for number in range(new):
            driver.hold(f"newer{new}-{number}")
    while again.ranges.bases:
        step(again)
    assert again.state == "follows"
    driver.commit(8)
    store.follower = again
    again.follow_all()
    must_agree(driver)
    assert again.disagreed == 0


def test_a_range_is_read_in_slices_while_it_changes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.store.states.ranges.SLICE_ROWS", 4)
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    store = driver.store
    follower, store.follower = follower_of(driver), None
    follower.verify()
    steps = 0
    while follower._must_replace or follower.ranges.bases:
        step(follower)
        steps += 1
        if steps == 3:
            driver.commit(7)
            driver.hold("new")
    assert steps > 5
    assert follower.disagreed == 0
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [8, 9, 10, 11, 12, 18]
    follower._must_replace = True
    follower.follow_all()
    assert must_agree(driver) == [8, 9, 10, 11, 12, 18]
    assert follower.disagreed == 0


def test_heads_are_told_from_later_requests_of_many_transactions(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    for number in range(2):
        for turn in range(6):
            driver.hold(f"t{turn}", number=number)
    assert must_agree(driver) == [*range(6)]
    driver.commit(3)
    assert must_agree(driver) == [0, 1, 2, 4, 5]
    assert follower_of(driver).disagreed == 0


def test_a_verification_finds_a_changed_record_and_the_log_wins(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    follower = follower_of(driver)
    follower.verify()
    follower.verify()
    driver.commit(7)
    assert must_agree(driver) == [8, 9, 10, 11, 12]
    assert follower.disagreed == 0
    corrupt(driver)
    follower.verify()
    follower.follow_all()
    assert must_agree(driver) == [8, 9, 10, 11, 12]
    assert follower.disagreed == 1
    assert "state_store_disagreed" in caplog.text


def test_a_decision_that_it_does_not_hold_shows_the_difference(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    corrupt(driver)
    driver.commit(10)
    assert must_agree(driver) == [7, 8, 9, 11, 12]
    assert follower_of(driver).disagreed == 1
    assert "state_store_disagreed" in caplog.text


def test_a_difference_after_a_clean_stop_is_said(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    corrupt(driver)
    driver = driver.closed_and_opened()
    assert must_agree(driver) == [7, 8, 9, 10, 11, 12]
    assert follower_of(driver).disagreed == 1
    assert "state_store_disagreed" in caplog.text


def corrupt(driver: Driver) -> None:
    """Make the state store say that row 10 was rolled back."""
    states = follower_of(driver).states
    part = follower_of(driver).ranges.part(10 - 10 % states.part_rows)
    rows = part.rows.copy()
    rows["state"][rows["half_offset"] == 10] = State.ROLLED_BACK
    rows["next_at_ms"][rows["half_offset"] == 10] = NEVER
    assert states.replace(replace(part, rows=rows)) == 1


def test_every_part_is_equal_once_it_was_replaced(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    mixed(driver)
    follower = follower_of(driver)
    size = follower.states.part_rows
    last = driver.store.table.end - 1
    for base in range(0, last - last % size + 1, size):
        assert follower.states.replace(follower.ranges.part(base)) == 0


def test_rows_that_repair_lost_are_not_in_it(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    driver.hold("t0")
    store = driver.store
    store.apply([Lost(length=0, rows_end=20)], Where(store.log.end, 0, store.last_at_ms))
    follower_of(driver).follow_all()
    assert must_agree(driver) == [0]


def test_ages_count_in_a_page_of_old_rows(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    driver.hold("t0")
    driver.clock.advance(ms=MINUTE)
    driver.hold("t1")
    states = follower_of(driver).states
    found = states.snapshot(1, 2)
    assert np.array_equal(found["half_offset"], [1])


def test_a_beat_moves_the_position(kind: str, tmp_path: Path) -> None:
    driver = driver_of(kind, tmp_path)
    driver.append()
    follower = follower_of(driver)
    follower.beat()
    follower.follow_all()
    assert follower.position is not None
    assert follower.position.log_offset == driver.store.durable_end > 0


def test_a_decision_of_rows_that_left_memory_meanwhile_is_handed_over(
    kind: str, tmp_path: Path
) -> None:
    driver = driver_of(kind, tmp_path)
    store = driver.store
    for number in range(20):
        driver.hold(f"t{number}")
    follower, store.follower = follower_of(driver), None
    for row in range(15):
        driver.commit(row)
    driver.clock.advance(ms=HOUR)
    driver.append()
    store.checkpoint()
    assert 0 not in store.table.chunks
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [15, 16, 17, 18, 19]
    assert follower.disagreed == 0
    # A comparison in a broker that serves does not read them, and knows no frames of decisions.
    driver.commit(17)
    follower.is_led = True
    follower.verify()
    while (work := follower.next_work()) is not None:
        work.then(work.run())
    assert follower.disagreed == 0
    follower.is_led = False
    assert must_agree(driver.closed_and_opened()) == [15, 16, 18, 19]
