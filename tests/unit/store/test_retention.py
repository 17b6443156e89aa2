"""Retention deletes a prefix of the log, by time or by size, and moves the queues' starts."""

from __future__ import annotations

import errno

import pytest

from escrowmq.model.errors import Unavailable
from escrowmq.store.index.key_index import key_hash
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.reading.reader import ReadStatus
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import DecideBatch
from tests.unit.store.helpers import HOUR, MINUTE, Driver, faulty, message

RETENTION = 24 * HOUR


def three_segments(retention_bytes: int = 0) -> Driver:
    """Three segments that begin a day apart, with the messages old, middle and new."""
    retention_ms = 1_000 * RETENTION if retention_bytes else RETENTION
    driver = Driver(retention_bytes=retention_bytes, retention_ms=retention_ms)
    driver.append(message("old"))
    for body in ("middle", "new"):
        driver.clock.advance(ms=RETENTION)
        driver.roll_segment()
        driver.append(message(body))
    assert len(driver.store.log.segments) == 3
    return driver


def starts(driver: Driver) -> list[int]:
    return [segment.start for segment in driver.store.log.segments]


# By time


def test_nothing_is_deleted_while_nothing_is_old() -> None:
    driver = Driver()
    driver.append(message("young"))
    driver.roll_segment()
    driver.roll_segment()
    before = starts(driver)
    driver.clock.advance(ms=RETENTION - 1)
    removed = driver.retain()
    assert (removed.log_start, removed.segments, removed.carried) == (0, 0, 0)
    assert starts(driver) == before
    assert driver.bodies() == ["young"]


def test_a_segment_goes_once_everything_in_it_is_old_enough() -> None:
    driver = three_segments()
    second, third = starts(driver)[1:]
    removed = driver.retain()
    assert (removed.log_start, removed.segments) == (second, 1)
    assert driver.bodies() == ["middle", "new"]
    driver.clock.advance(ms=RETENTION - 1)
    assert driver.retain().segments == 0
    driver.clock.advance(ms=1)
    assert driver.retain().log_start == third
    assert driver.bodies() == ["new"]


def test_the_last_segment_is_never_deleted() -> None:
    driver = three_segments()
    last = starts(driver)[-1]
    driver.clock.advance(ms=100 * RETENTION)
    driver.retain()
    assert starts(driver) == [last]
    assert driver.bodies() == ["new"]
    assert driver.retain().segments == 0


def test_an_empty_store_has_nothing_to_delete() -> None:
    driver = Driver()
    driver.clock.advance(ms=100 * RETENTION)
    assert driver.retain().segments == 0


def test_a_segment_is_young_while_the_empty_one_after_it_waits_for_its_first_frame() -> None:
    """A crash came between creating the file and writing to it."""
    driver = Driver()
    driver.append(message("young"))
    driver.store.checkpoint()
    faulty(driver).open(segment_path(driver.store.log.end), create=True)
    after = driver.opened_again()
    assert len(after.store.log.segments) == 2
    assert after.retain().segments == 0
    assert after.bodies() == ["young"]


def test_segment_times_are_known_after_a_restart() -> None:
    driver = three_segments().closed_and_opened()
    second = starts(driver)[1]
    assert driver.retain().log_start == second
    assert driver.bodies() == ["middle", "new"]


# By space


def test_the_log_is_kept_below_its_size_by_deleting_its_oldest_segments() -> None:
    driver = three_segments(retention_bytes=6_000)
    assert driver.store.log.written > 6_000
    driver.retain()
    assert driver.store.log.written - driver.store.log.start <= 6_000
    assert driver.bodies() == ["middle", "new"]


def test_the_last_segment_stays_though_it_is_too_large() -> None:
    driver = three_segments(retention_bytes=1)
    driver.retain()
    assert len(driver.store.log.segments) == 1
    assert driver.bodies() == ["new"]


# Queues


def test_a_reader_that_lags_behind_is_told_where_the_queue_starts_now() -> None:
    driver = three_segments()
    driver.retain()
    pulled = driver.reader.pull("orders", 0, 0, count_max=10, bytes_max=10_000)
    assert pulled.status is ReadStatus.BEHIND_START
    assert (pulled.next_offset, pulled.start, pulled.end) == (1, 1, 3)
    assert pulled.messages == []
    again = driver.reader.pull("orders", 0, pulled.next_offset, count_max=10, bytes_max=10_000)
    assert again.status is ReadStatus.FOUND


def test_a_queue_starts_one_past_the_highest_entry_into_the_deleted_prefix() -> None:
    """An older half message that was committed later hides the younger messages before it."""
    driver = Driver(retention_bytes=6_000)
    driver.hold("older")
    driver.roll_segment()
    driver.append(message("younger"))
    driver.commit(0)
    driver.append(message("youngest"))
    driver.roll_segment()
    assert driver.bodies() == ["younger", "older", "youngest"]
    driver.retain()
    assert driver.bodies() == ["youngest"]


def test_a_queue_without_entries_into_the_prefix_stays_whole() -> None:
    driver = three_segments()
    driver.append(message("elsewhere", topic="other"))
    driver.retain()
    queue = driver.reader.queue("other", 0)
    assert queue is not None
    assert (queue.start, queue.end) == (0, 1)


def test_a_queue_that_lost_all_its_entries_goes_on_counting() -> None:
    driver = Driver()
    driver.append(message("a"), message("b"))
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.retain()
    assert driver.bodies() == []
    for _ in range(2):
        pulled = driver.reader.pull("orders", 0, 2, count_max=1, bytes_max=1)
        assert (pulled.status, pulled.start) == (ReadStatus.NOTHING_NEW, 2)
        driver = driver.closed_and_opened()
    assert driver.append(message("c")).queue_offsets == [2]


def test_a_queue_rebuilt_from_the_log_alone_is_looked_through_whole() -> None:
    """No checkpoint says with which setting its entries were made."""
    driver = Driver(retention_bytes=6_000, copy_after_ms=HOUR)
    driver.hold("old")
    driver.roll_segment()
    driver.clock.advance(ms=50 * MINUTE)
    driver.commit(0)
    driver.roll_segment()
    for name in ("checkpoint", "checkpoint.old"):
        driver.disk.remove(name)
    after = driver.opened_again(copy_after_ms=1)
    assert after.retain().segments == 1
    assert after.bodies() == []


def test_a_lower_age_for_copies_does_not_uncover_entries_of_before() -> None:
    """Entries from before the change may point further back than the new setting allows."""
    driver = Driver(retention_bytes=6_000, copy_after_ms=HOUR)
    driver.hold("old")
    driver.roll_segment()
    driver.clock.advance(ms=50 * MINUTE)
    driver.commit(0)
    driver.append(message("new"))
    driver.roll_segment()
    after = driver.closed_and_opened(copy_after_ms=1).closed_and_opened(copy_after_ms=1)
    assert after.retain().segments == 1
    assert after.bodies() == ["new"]


def test_the_index_of_keys_forgets_what_is_deleted() -> None:
    driver = Driver()
    driver.append(message("old", keys="k"))
    driver.store.checkpoint()
    before = driver.disk.list("keyindex")
    assert before
    driver.roll_segment()
    driver.append(message("new", keys="k"))
    driver.clock.advance(ms=RETENTION)
    assert driver.retain().segments == 1
    driver.store.checkpoint()
    driver.store.checkpoint()
    assert not set(before) & set(driver.disk.list("keyindex"))
    assert len(driver.reader.find("orders", "k", limit=9)) == 1


def test_a_run_of_keys_that_begins_in_deleted_log_shows_only_the_rest_of_it() -> None:
    driver = Driver()
    driver.append(message("old", keys="k"))
    driver.roll_segment()
    new = driver.append(message("new", keys="k")).log_offsets
    driver.store.checkpoint()
    driver.clock.advance(ms=RETENTION)
    assert driver.retain().segments == 1
    for _ in range(2):
        assert driver.store.keys.find(key_hash("k")) == new
        driver = driver.closed_and_opened()


# Batches


def test_names_of_batches_go_with_their_decision_and_numbers_stay_for_ever() -> None:
    driver = Driver()
    driver.hold("a", number=0, bulk=True)
    assert driver.decide_batch("plain-write", ("a", 0, 1)).outcome == "decided"
    driver.hold("b", number=0, bulk=True)
    assert driver.decide_batch(7, ("b", 0, 1)).outcome == "decided"
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    assert driver.decide_batch("plain-write").outcome == "already_done"
    driver.retain()
    for _ in range(2):
        assert driver.decide_batch(7).outcome == "already_done"
        assert driver.store.core.batches.judge("app", "q", "plain-write") == "new"
        assert driver.store.core.batches.judge("app", "other", 7) == "taken"
        driver = driver.closed_and_opened()


def test_a_restart_knows_the_rows_of_batches_and_which_queries_leave_no_gap() -> None:
    """From the log as well as from the checkpoint."""
    driver = Driver()
    batches: list[tuple[int | str, str]] = [(5, ""), ("name", "20:aa")]
    for batch_id, content in batches:
        driver.do(
            DecideBatch(
                app_id="app",
                query_id="q",
                batch_id=batch_id,
                attempts=(),
                by="spark",
                content=content,
                is_gapless=True,
            )
        )
    from_log = driver.crashed()
    for reopened in (from_log, from_log.closed_and_opened()):
        known = reopened.store.core.batches
        assert known.is_after_gap("app", "q", 9)
        assert not known.is_after_gap("app", "q", 6)
        assert known.judge("app", "other", "name", "20:aa") == "done"
        assert known.judge("app", "other", "name", "20:bb") == "taken"


# Crashes


def test_a_crash_at_any_moment_leaves_a_store_that_goes_on() -> None:
    driver = three_segments()
    driver.hold("undecided")
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.store.checkpoint()
    image = faulty(driver).crash_image(nothing_survives)
    disk = FaultyDisk(image)
    retaining = Driver(disk, clock=driver.clock)
    begin = len(disk.journal)
    removed = retaining.retain()
    assert (removed.segments, removed.carried) == (3, 1)
    explorer = CrashExplorer(disk.journal, image)
    explorer.advance_to(begin)
    for point in explorer:
        for survivors in (nothing_survives, everything_survives):
            after = Driver(point.crash(survivors), clock=driver.clock)
            # Segments are deleted one after the other; those without needed rows are deleted
            # together.
            assert after.bodies() in (["old", "middle", "new"], ["new"], [])
            after.retain()
            assert after.store.log.start == removed.log_start
            assert after.bodies() == []
            after.commit(0)
            assert after.bodies() == ["undecided"]


def test_a_damaged_checkpoint_after_retention_leaves_the_one_before() -> None:
    """The earlier checkpoint must not depend on deleted log."""
    driver = three_segments()
    driver.hold("undecided")
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    assert driver.retain().segments == 3
    before = driver.picture()
    faulty(driver).flip_bit("checkpoint", 60, 0)
    after = driver.opened_again()
    assert after.found.rebuilt_because
    assert after.picture()["queues"] == before["queues"]
    after.commit(0)
    assert after.bodies() == ["undecided"]


def test_a_checkpoint_that_fails_during_retention_stops_the_store_and_deletes_nothing() -> None:
    driver = three_segments()
    faulty(driver).fail_after(DiskCall.RENAME, 0, errno.EIO, under="checkpoint")
    with pytest.raises(OSError, match="Input/output"):
        driver.retain()
    with pytest.raises(Unavailable):
        driver.append(message("refused"))
    after = driver.opened_again()
    assert after.bodies() == ["old", "middle", "new"]
