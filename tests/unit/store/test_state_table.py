"""The state table gives the same answers for rows in memory, in files, and in both."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.model.resolution import Resolution
from escrowmq.store.log.lone_frames import HALF
from escrowmq.store.recovery.replay import insert_singles
from escrowmq.store.retention.needed import needed_below, needed_rows
from escrowmq.transaction.commands import CheckSent, End, Park, Resume
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST
from tests.unit.store.helpers import HOUR, MINUTE, Driver, faulty, message

CHUNK_ROWS = 8


def settled_chunk(driver: Driver, *undecided: int, rows: int = CHUNK_ROWS) -> None:
    """Add one chunk, decided except for these rows, and old enough to leave memory."""
    first = driver.store.table.end
    for row in range(first, first + rows):
        driver.hold(f"t{row}")
        if row - first not in undecided:
            (driver.commit if row % 2 else driver.roll_back)(row, by=f"by {row}")
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes", topic="clock"))


def dropped(driver: Driver) -> Driver:
    """Take a checkpoint that drops a chunk from memory."""
    before = len(driver.store.table.chunks)
    driver.store.checkpoint()
    assert len(driver.store.table.chunks) < before
    return driver


# Rows


def test_rows_are_numbered_without_a_gap_across_chunks() -> None:
    driver = Driver()
    firsts = [driver.hold(f"t{number}", *[message("x")] * 5).half_offset for number in range(5)]
    assert firsts == [0, 5, 10, 15, 20]
    assert driver.store.table.end == 25
    assert list(driver.store.table.chunks) == [0, 8, 16, 24]


@pytest.mark.parametrize("before", [0, 3, 7])
def test_a_request_larger_than_a_chunk_is_one_request(before: int) -> None:
    driver = Driver()
    for number in range(before):
        driver.hold(f"before {number}")
    bodies = [message(f"m{number}", queue_id=number % 3, tags="a") for number in range(30)]
    held = driver.hold("large", *bodies)
    halves = [driver.half(before + number) for number in range(30)]
    assert [half.log_offset for half in halves] == held.log_offsets
    assert [half.queue for half in halves] == [half.queue for half in halves[:3]] * 10
    assert halves[0].part == FIRST | 30
    assert [half.first for half in halves] == [before] * 30
    assert list(driver.store.table.queues(before, 30)) == [half.queue for half in halves]
    assert driver.store.table.sizes(before, 30) == sum(half.size for half in halves)
    driver.commit(before + 29)
    for queue_id in range(3):
        assert driver.bodies(queue_id=queue_id) == [f"m{n}" for n in range(queue_id, 30, 3)]
    assert driver.crashed().picture() == driver.picture()


def test_rows_that_never_were_are_not_there() -> None:
    driver = Driver()
    driver.hold("t")
    for row in (-1, 1, 8, 10**9):
        assert driver.store.table.get(row) is None
    assert driver.store.table.row_at(10**9) is None
    assert driver.store.table.row_at(0) is None


def test_a_table_without_rows_finds_nothing() -> None:
    table = Driver().store.table
    assert table.get(0) is None
    assert table.find("t") is None
    assert table.row_at(44) is None
    assert table.due(NEVER - 1, 5) == []
    assert needed_rows(table) == []


def test_parts_of_a_transaction_share_one_check() -> None:
    driver = Driver()
    driver.hold("t", message("a"), message("b"), number=0)
    driver.hold("t", message("c"), number=1)
    driver.clock.advance(ms=HOUR)
    assert driver.store.table.due(driver.clock.now_ms(), 9) == [0]


# Chunks that leave memory


def test_a_settled_chunk_leaves_memory_and_is_read_from_its_file() -> None:
    driver = Driver()
    settled_chunk(driver)
    driver.hold("young")
    before = driver.picture()
    dropped(driver)
    assert list(driver.store.table.chunks) == [8]
    assert driver.store.table.survivors.rows == {}
    assert driver.picture() == before
    assert driver.crashed().picture() == before
    for row in range(8):
        half = driver.half(row)
        assert driver.store.table.row_at(half.log_offset) == row
        assert driver.store.table.decided_by(half)[0] == f"by {row}"


def test_a_chunk_stays_while_many_of_its_rows_are_undecided() -> None:
    driver = Driver()
    settled_chunk(driver, 0, 1)
    driver.store.checkpoint()
    assert list(driver.store.table.chunks) == [0]
    driver.commit(0)
    dropped(driver)


def test_a_chunk_stays_while_a_resent_half_could_be_in_it() -> None:
    driver = Driver(id_window_ms=HOUR)
    settled_chunk(driver)
    driver.store.checkpoint()
    assert list(driver.store.table.chunks) == [0]
    driver.clock.advance(ms=HOUR)
    driver.append()
    dropped(driver)


def test_a_chunk_that_is_not_full_stays() -> None:
    driver = Driver()
    settled_chunk(driver, rows=7)
    driver.store.checkpoint()
    assert list(driver.store.table.chunks) == [0]


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_a_row_that_outlives_its_chunk_can_do_all_it_could(restart: str) -> None:
    driver = Driver(chunk_rows=64)
    settled_chunk(driver, 5, rows=64)
    offset = driver.half(5).log_offset
    dropped(driver)
    if restart == "clean":
        driver = driver.closed_and_opened()
    elif restart == "crash":
        driver = driver.crashed()
    table = driver.store.table
    assert list(table.survivors.rows) == [5]
    assert table.find("t5") == 5
    assert table.row_at(offset) == 5
    assert table.due(driver.clock.now_ms(), 9) == [5]
    assert table.needed == 1
    assert [one.rows["row"].tolist() for one in needed_below(table, offset + 1)] == [[5]]
    assert [one.rows["row"].tolist() for one in needed_below(table, offset)] == [[]]
    assert list(table.queues(4, 3)) == [0, 0, 0]
    driver.do(CheckSent(half_offset=5, client="c"))
    assert driver.half(5).checks_sent == 1
    driver.do(Park(half_offset=5, reason="by hand"))
    assert driver.half(5).state is State.PARKED
    driver.do(Resume(half_offset=5, by="admin"))
    assert driver.crashed().half(5) == driver.half(5)
    driver.commit(5, by="late")
    assert driver.bodies()[-1] == "t5"
    driver.store.checkpoint()
    for again in (driver, driver.crashed()):
        repeated = again.commit(5, by="again")
        assert (repeated.by, repeated.repeated) == ("late", True)
        end = End(half_offset=5, resolution=Resolution.ROLLBACK, by="x")
        assert again.refused(end).fields["by"] == "late"
        assert again.store.table.needed == 0
        # Its file still says undecided; the map of survivors is right.
        assert again.half(5).state is State.COMMITTED


def test_a_request_across_chunks_of_which_one_left_is_still_one() -> None:
    driver = Driver()
    driver.hold("a", *[message("x")] * 7)
    driver.commit(0)
    driver.hold("b", message("1"), message("2"), message("3", queue_id=1))
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes", topic="clock"))
    dropped(driver)
    assert list(driver.store.table.survivors.rows) == [7]
    driver.commit(9, by="me")
    assert driver.bodies()[7:] == ["1", "2"]
    assert driver.bodies(queue_id=1) == ["3"]
    assert [driver.store.table.decided_by(driver.half(row))[0] for row in (7, 8, 9)] == ["me"] * 3
    assert driver.crashed().picture() == driver.picture()


def test_decisions_are_remembered_across_many_checkpoints() -> None:
    """Each checkpoint writes a new file for a chunk; only the earlier file has the decisions."""
    driver = Driver(chunk_rows=64)
    for row in range(6):
        driver.hold(f"t{row}")
        driver.commit(row, by=f"by {row}")
        driver.store.checkpoint()
        driver.store.checkpoint()
    for again in (driver, driver.crashed(), driver.crashed().closed_and_opened()):
        deciders = [again.store.table.decided_by(again.half(row))[0] for row in range(6)]
        assert deciders == [f"by {row}" for row in range(6)]


# By transaction id


def test_an_id_is_found_while_its_chunk_or_its_row_is_in_memory() -> None:
    driver = Driver()
    settled_chunk(driver, 3)
    driver.hold("young")
    assert [driver.store.table.find(f"t{row}") for row in range(8)] == list(range(8))
    dropped(driver)
    found = [driver.store.table.find(f"t{row}") for row in range(8)]
    assert found == [None, None, None, 3, None, None, None, None]
    assert driver.store.table.find("young") == 8
    # The others are found by the key index.
    for row in range(8):
        half = driver.reader.find_transaction(f"t{row}")
        assert half is not None
        assert half.half_offset == row


def test_an_id_used_again_is_its_newest_request() -> None:
    driver = Driver()
    settled_chunk(driver, 0)
    dropped(driver)
    driver.commit(0)
    again = driver.hold("t0", message("another"))
    assert driver.store.table.find("t0") == again.half_offset == 8
    assert driver.crashed().store.table.find("t0") == 8


def test_a_newer_survivor_is_found_before_an_older_row_in_memory() -> None:
    driver = Driver()
    driver.hold("twice")
    for number in range(7):
        driver.hold(f"undecided {number}")
    driver.hold("twice", message("newer"))
    settled_chunk(driver, rows=7)
    dropped(driver)
    assert list(driver.store.table.chunks) == [0]
    assert driver.store.table.find("twice") == 8


def test_the_filter_of_ids_grows_with_the_rows() -> None:
    driver = Driver(chunk_rows=4096, segment_bytes_max=2**26)
    for number in range(3):
        driver.hold(f"bulk {number}", *[message("")] * 4096)
    for number in range(1, 9_000):
        driver.store.table.ids.add(crc32(b"%d" % number))
    driver.hold("last")
    assert driver.store.table.find("last") == 3 * 4096
    assert driver.store.table.find("bulk 1") == 4096
    assert driver.store.table.find("new") is None


def test_the_filter_grows_when_many_rows_are_replayed_at_once() -> None:
    count = 9_000
    halves = np.zeros(count, dtype=HALF)
    halves["row"] = range(count)
    halves["size"] = 1
    halves["id_hash"] = [crc32(b"%d" % number) for number in range(count)]
    table = Driver(chunk_rows=1024).store.table
    insert_singles(table, halves, halves["row"], halves["row"])
    assert table.end == count
    assert not table.ids.is_full
    assert all(table.ids.may_hold(id_hash) for id_hash in halves["id_hash"].tolist())
    assert table.row_at(8_999) == 8_999


# Due rows


def test_due_rows_come_from_memory_and_from_the_map_up_to_the_limit() -> None:
    driver = Driver(chunk_rows=64)
    settled_chunk(driver, 1, rows=64)
    dropped(driver)
    for number in range(70):
        driver.hold(f"young {number}")
    driver.clock.advance(ms=HOUR)
    now_ms = driver.clock.now_ms()
    due = driver.store.table.due(now_ms, 100)
    assert due == [1, *range(64, 134)]
    assert driver.store.table.due(now_ms, 3) == due[:3]
    assert driver.store.table.due(now_ms, 66) == due[:66]
    assert needed_rows(driver.store.table) == due


# Damage


def test_a_damaged_row_of_a_dropped_chunk_is_never_served() -> None:
    driver = Driver()
    settled_chunk(driver)
    dropped(driver)
    name = next(name for name in driver.disk.list("statetable") if name.startswith("0"))
    faulty(driver).flip_bit(f"statetable/{name}", 72 * 3 + 9, 2)
    assert driver.half(2).half_offset == 2
    for _ in range(2):
        with pytest.raises(StoreCorrupt) as refused:
            driver.store.table.get(3)
        assert refused.value.code == "state_table_damaged"
        assert refused.value.fields == {"path": f"statetable/{name}", "at": 72 * 3}
        driver = driver.closed_and_opened()
