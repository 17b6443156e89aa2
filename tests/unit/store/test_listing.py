"""Transactions by half offset, page by page: in memory, in files, and across both."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.disk.rows import Rows
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.reading.identities import UNKNOWN, identities
from escrowmq.store.reading.listing import (
    DueBy,
    WantedHeads,
    heads_at,
    list_heads,
    message_counts,
    plan,
    started_at_ms,
)
from escrowmq.transaction.commands import CheckSent, Park, Resume
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, Driver, message
from tests.unit.store.test_state_table import dropped, settled_chunk

UNDECIDED = (State.PREPARED, State.PARKED)


def heads(driver: Driver, *states: State, start: int = 0, end: int = NEVER) -> list[int]:
    page = list_heads(driver.store, start, end, states or UNDECIDED, limit=1_000)
    assert page.next_start is None
    return [int(row) for row in page.heads["half_offset"]]


def test_a_transaction_is_listed_once_under_its_head() -> None:
    driver = Driver()
    driver.hold("a", message("1"), message("2"), number=0)
    driver.hold("b")
    driver.hold("a", message("3"), number=1)
    page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=10)
    assert page.heads["half_offset"].tolist() == [0, 2]
    assert message_counts(driver.store, page.heads).tolist() == [3, 1]


def test_only_wanted_states_are_listed_and_no_ordinary_messages() -> None:
    driver = Driver()
    for name in "abcd":
        driver.hold(name)
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.commit(0)
    driver.roll_back(1)
    driver.do(Park(half_offset=2, reason="test"))
    assert heads(driver) == [2, 3]
    assert heads(driver, State.PREPARED) == [3]
    assert heads(driver, State.PARKED) == [2]
    assert heads(driver, State.COMMITTED) == [0]
    assert heads(driver, *State) == [0, 1, 2, 3]


def test_only_what_is_due_or_old_is_listed() -> None:
    driver = Driver()
    for name in "abc":
        driver.hold(name)
    checked_at_ms = driver.clock.now_ms() + 2 * MINUTE
    driver.do(CheckSent(half_offset=1, client="c"))
    driver.clock.advance(ms=MINUTE)
    driver.hold("d")

    def due(check_at_ms: int, stored_at_ms: int) -> list[int]:
        wanted = DueBy(check_at_ms=check_at_ms, stored_at_ms=stored_at_ms)
        page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=10, due_by=wanted)
        found: list[int] = page.heads["half_offset"].tolist()
        return found

    now_ms = driver.clock.now_ms()
    assert due(0, 0) == []
    assert due(checked_at_ms, 0) == [0, 1, 2, 3]
    assert due(now_ms - MINUTE + 6_000, 0) == [0, 2]
    assert due(0, now_ms - MINUTE) == [0, 1, 2]


def test_survivors_are_listed_when_they_are_due() -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    settled_chunk(driver)
    dropped(driver)
    for at_ms, found in ((0, []), (driver.clock.now_ms(), [2])):
        wanted = DueBy(check_at_ms=at_ms, stored_at_ms=0)
        page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=10, due_by=wanted)
        assert page.heads["half_offset"].tolist() == found


def test_a_range_is_half_open_and_may_lie_anywhere() -> None:
    driver = Driver()
    for number in range(20):
        driver.hold(f"t{number}")
    assert heads(driver, start=3, end=12) == list(range(3, 12))
    assert heads(driver, start=30, end=40) == []
    assert heads(driver, start=5, end=5) == []


def test_pages_follow_each_other_without_gap_or_repeat() -> None:
    driver = Driver()
    for number in range(20):
        driver.hold(f"t{number}")
    found: list[int] = []
    start: int | None = 0
    while start is not None:
        page = list_heads(driver.store, start, NEVER, UNDECIDED, limit=3)
        assert len(page.heads) <= 3
        found += page.heads["half_offset"].tolist()
        start = page.next_start
    assert found == list(range(20))


def test_a_page_ends_once_enough_was_looked_at() -> None:
    driver = Driver()
    for number in range(20):
        driver.hold(f"t{number}")
    page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=100, looked_at_max=8)
    assert (len(page.heads), page.next_start) == (8, 8)


def test_rows_that_left_memory_are_listed_as_well() -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    settled_chunk(driver)
    dropped(driver)
    driver.hold("new")
    assert heads(driver) == [2, 16]
    assert heads(driver, *State) == list(range(17))
    assert heads(driver, State.COMMITTED, start=1, end=9) == [1, 3, 5, 7]
    # Decided since then, which only the map of survivors knows.
    driver.commit(2)
    assert heads(driver) == [16]
    assert heads(driver, State.COMMITTED, end=4) == [1, 2, 3]
    again = driver.closed_and_opened()
    assert heads(again, *State) == list(range(17))


def test_rows_before_the_tables_start_are_gone() -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    dropped(driver)
    driver.store.table.start = 4
    assert heads(driver, State.COMMITTED, State.ROLLED_BACK, end=8) == [4, 5, 6, 7]
    driver.store.table.start = 8
    assert heads(driver, State.COMMITTED, end=8) == []
    assert heads(driver, *State, end=8) == [2]


def test_rows_in_the_map_alone_need_no_file() -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    dropped(driver)
    driver.store.table.files.chunks.clear()
    assert heads(driver, *State) == [2]


def test_the_age_of_a_resumed_transaction_counts_from_then() -> None:
    driver = Driver()
    driver.hold("a")
    driver.hold("b")
    stored = driver.half(0).stored_at_ms
    driver.clock.advance(ms=MINUTE)
    driver.do(Park(half_offset=0, reason="test"))
    driver.do(Resume(half_offset=0, by="ops"))
    driver.do(CheckSent(half_offset=0, client="c"))
    page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=10)
    assert started_at_ms(driver.store, page.heads).tolist() == [stored + MINUTE, stored]
    assert page.heads["checks_sent"].tolist() == [1, 0]


def ids(driver: Driver) -> list[str]:
    page = list_heads(driver.store, 0, NEVER, tuple(State), limit=1_000)
    return [one.decode() for one in identities_at(driver, page.heads)[0]]


def identities_at(driver: Driver, heads: Rows) -> tuple[list[bytes], list[int]]:
    found, firsts = identities(driver.store, heads["half_offset"], heads["location"])
    return found, firsts.tolist()


def identity_at(driver: Driver, row: int, location: int) -> tuple[list[bytes], list[int]]:
    found, firsts = identities(driver.store, np.array([row]), np.array([location]))
    return found, firsts.tolist()


def test_transaction_ids_are_read_from_the_log() -> None:
    driver = Driver()
    driver.hold("one")
    driver.hold("keys", message("x", keys="k1 k2"))
    driver.hold("many", message("1"), message("2"))
    driver.hold("large", message("x" * 40_000))
    driver.hold("é")
    assert ids(driver) == ["one", "keys", "many", "large", "é"]


def test_the_id_of_a_half_message_that_was_carried_forward_is_known() -> None:
    driver = Driver(retention_ms=HOUR)
    driver.hold("old", message("1"), message("2"))
    driver.hold("older than the log")
    driver.commit(2)
    driver.roll_segment()
    driver.clock.advance(ms=2 * HOUR)
    driver.append(message("time passes", topic="clock"))
    driver.retain()
    assert driver.store.log.start > 0
    assert ids(driver)[0] == "old"


def test_a_frame_without_the_row_names_no_decider() -> None:
    driver = Driver()
    held = driver.hold("two", message("1"), message("2"))
    driver.hold("one")
    assert identity_at(driver, 7, held.log_offsets[0]) == ([b""], [UNKNOWN])


def test_a_decided_request_whose_frame_is_deleted_has_no_id() -> None:
    driver = Driver()
    held = driver.hold("t")
    assert identity_at(driver, 0, held.log_offsets[0] - 10_000) == ([b""], [UNKNOWN])


def test_a_plain_transaction_counts_its_own_messages_from_when_it_was_stored() -> None:
    driver = Driver()
    driver.hold("a", message("1"), message("2"))
    page = list_heads(driver.store, 0, NEVER, UNDECIDED, limit=10)
    assert message_counts(driver.store, page.heads).tolist() == [2]
    assert started_at_ms(driver.store, page.heads).tolist() == [driver.half(0).stored_at_ms]
    driver.hold("b", number=0)
    driver.hold("b", number=1)
    assert message_counts(driver.store, page.heads).tolist() == [2]


def test_an_id_is_read_whole_when_only_its_start_was_read_with_the_one_before() -> None:
    driver = Driver(segment_bytes_max=1024 * 1024)
    for number in range(200):
        driver.hold(f"t{number}", message("x" * 300))
    assert ids(driver) == [f"t{number}" for number in range(200)]


@pytest.mark.parametrize("weight", [1, 3, 8, 20, 1_000])
def test_planned_ranges_cover_everything_and_have_about_their_weight(weight: int) -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    settled_chunk(driver)
    dropped(driver)
    for number in range(30):
        driver.hold(f"new {number}")
    ranges = plan(driver.store, weight)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == driver.store.table.end
    assert all(one[1] == after[0] for one, after in pairwise(ranges))
    found = [row for start, end, _ in ranges for row in heads(driver, start=start, end=end)]
    assert found == heads(driver)
    for start, end, _ in ranges:
        assert len(heads(driver, start=start, end=end)) <= 2 * weight


def test_a_plan_of_nothing_is_one_empty_range() -> None:
    assert plan(Driver().store, 10) == [(0, 0, 0)]


def test_the_head_of_a_request_is_known_once_it_is_decided() -> None:
    driver = Driver()
    driver.hold("a", message("1"), message("2"), number=0)
    driver.hold("b")
    driver.hold("a", message("3"), number=1)
    driver.commit(0)
    page = list_heads(driver.store, 0, NEVER, tuple(State), limit=10)
    assert page.heads["half_offset"].tolist() == [0, 2, 3]
    assert identities_at(driver, page.heads) == ([b"a", b"b", b"a"], [0, 2, 0])


def test_an_id_that_repair_took_out_is_not_known() -> None:
    driver = Driver()
    held = driver.hold("two", message("1"), message("2"))
    start = held.log_offsets[0] - HEAD_BYTES
    driver.store.lost.add(start, start + 10)
    assert identity_at(driver, 0, held.log_offsets[0]) == ([b""], [UNKNOWN])


@pytest.mark.parametrize("is_in_head", [True, False])
@pytest.mark.parametrize("at", [0, 30, 41])
def test_an_id_whose_frame_is_damaged_is_an_error(at: int, *, is_in_head: bool) -> None:
    driver = Driver()
    held = driver.hold("t" * 50)
    start = held.log_offsets[0] - HEAD_BYTES
    at += start if is_in_head else start + HEAD_BYTES + driver.half(0).size
    driver.store.log.segments[0].file.write_at(at, b"\xff\xff")
    with pytest.raises(StoreCorrupt, match="frame_damaged"):
        identity_at(driver, 0, held.log_offsets[0])


def test_ids_are_read_together_where_they_are_near_each_other() -> None:
    driver = Driver(segment_bytes_max=1024 * 1024)
    for number in range(30):
        driver.hold(f"t{number}", message("x" * (30_000 if number % 7 == 3 else 10)))
    assert ids(driver) == [f"t{number}" for number in range(30)]


def test_a_page_of_rows_in_a_file_goes_on_after_those_that_only_the_map_knows() -> None:
    driver = Driver()
    settled_chunk(driver, 2)
    dropped(driver)
    driver.commit(2)
    states = (State.PREPARED, State.ROLLED_BACK)
    found: list[int] = []
    start: int | None = 0
    while start is not None:
        page = list_heads(driver.store, start, NEVER, states, limit=1)
        found += page.heads["half_offset"].tolist()
        start = page.next_start
    # The file still has the third row in its old state.
    assert found == heads(driver, *states) == [0, 4, 6]


def test_of_found_rows_only_wanted_heads_are_returned() -> None:
    driver = Driver()
    for number in range(20):
        driver.hold(f"t{number}")
    driver.hold("many", message("m0"), message("m1"), number=0)
    driver.hold("many", message("m2"), number=1)
    for row in (*range(8), 9):
        driver.commit(row)
    wanted = WantedHeads((State.PREPARED,))
    found = np.array([22, 20, 21, 9, 10, 3, 500])
    assert heads_at(driver.store, found, wanted)["half_offset"].tolist() == [10, 20]


def test_a_found_row_that_outlived_its_chunk_is_returned() -> None:
    driver = Driver()
    settled_chunk(driver, 3)
    dropped(driver)
    (row, *_) = driver.store.table.survivors.rows
    half = driver.half(row)
    heads = heads_at(driver.store, np.array([row]), WantedHeads((half.state,)))
    assert heads["stored_at_ms"].tolist() == [half.stored_at_ms]
