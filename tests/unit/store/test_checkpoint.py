"""A checkpoint is whole or absent; changes made while it is written belong to the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.checkpoint.checkpoint import Checkpoint, load, save
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import (
    everything_survives,
    interesting_survivors,
    nothing_survives,
)
from escrowmq.transaction.commands import CheckSent, Park
from tests.unit.store.helpers import MINUTE, SECOND, T0, Driver, faulty, message


def latest(driver: Driver) -> Checkpoint:
    found = load(driver.disk, checkpoints.PATH)
    assert found is not None
    return found


@pytest.fixture
def driver() -> Driver:
    """A store with every kind of content that a checkpoint holds."""
    driver = Driver()
    driver.append(message("a", keys="k"))
    driver.hold("t", message("b"), message("c", deliver_after_ms=5), number=0)
    driver.hold("t", message("d"), number=1)
    driver.hold("parked")
    driver.do(Park(half_offset=3, reason="by hand"))
    driver.hold("batch", number=0, bulk=True)
    driver.decide_batch(4, ("batch", 0, 1))
    return driver


# The file


def test_a_checkpoint_is_read_back_as_it_was_saved(driver: Driver) -> None:
    driver.store.checkpoint()
    saved = latest(driver)
    assert (saved.at_ms, saved.log_start) == (T0, 0)
    assert saved.log_end == driver.store.log.end
    assert (saved.rows_start, saved.rows_end) == (0, 5)
    assert saved.queue_bounds == [(0, 2)]
    assert saved.delays == {1: 5}
    assert list(saved.parts) == [0]
    disk = FaultyDisk()
    save(disk, saved)
    assert load(disk, checkpoints.PATH) == saved


def test_a_missing_checkpoint_is_none() -> None:
    assert load(FaultyDisk(), checkpoints.PATH) is None


def test_a_checkpoint_with_any_bit_flipped_is_none(driver: Driver) -> None:
    driver.store.checkpoint()
    disk = faulty(driver)
    size = len(disk.snapshot()[checkpoints.PATH])
    for place in range(0, size, 3):
        disk.flip_bit(checkpoints.PATH, place, place % 8)
        assert load(disk, checkpoints.PATH) is None, place
        disk.flip_bit(checkpoints.PATH, place, place % 8)
    assert load(disk, checkpoints.PATH) is not None


def test_a_checkpoint_cut_at_any_byte_is_none_or_whole(driver: Driver) -> None:
    driver.store.checkpoint()
    disk = faulty(driver)
    whole = latest(driver)
    for size in range(len(disk.snapshot()[checkpoints.PATH])):
        short = FaultyDisk.load({"checkpoint": disk.snapshot()[checkpoints.PATH][:size]})
        assert load(short, checkpoints.PATH) in (None, whole)


def test_the_one_before_is_kept(driver: Driver) -> None:
    driver.store.checkpoint()
    first = latest(driver)
    driver.append()
    driver.store.checkpoint()
    assert load(driver.disk, checkpoints.PREVIOUS) == first
    assert latest(driver).log_end > first.log_end


def test_there_is_a_whole_checkpoint_at_every_moment(driver: Driver) -> None:
    driver.store.checkpoint()
    image = faulty(driver).crash_image(nothing_survives)
    disk = FaultyDisk(image)
    save(disk, latest(driver).with_files(key_runs=["x"]))
    for point in CrashExplorer(disk.journal, image):
        for survivors in interesting_survivors(point.pending):
            left = point.crash(survivors)
            assert load(left, checkpoints.PATH) or load(left, checkpoints.PREVIOUS)


# When it is due


def test_a_checkpoint_is_due_after_so_many_bytes() -> None:
    driver = Driver(checkpoint_bytes=4096)
    driver.append(message(bytes(3000)))
    assert not driver.store.checkpoint_due
    driver.append(message(bytes(3000)))
    assert driver.store.checkpoint_due
    driver.store.checkpoint()
    assert not driver.store.checkpoint_due
    assert not driver.closed_and_opened().store.checkpoint_due


def test_after_a_checkpoint_nothing_is_replayed(driver: Driver) -> None:
    before = driver.picture()
    driver.store.checkpoint()
    after = driver.crashed()
    assert after.found.frames == 0
    assert after.found.replayed_from == after.store.recovered_at == driver.store.log.end
    assert after.picture() == before


def test_a_clean_stop_leaves_nothing_to_replay(driver: Driver) -> None:
    before = driver.picture()
    after = driver.closed_and_opened()
    assert (after.found.frames, after.found.cut_bytes) == (0, 0)
    assert after.picture() == before


def test_a_restart_without_news_writes_no_checkpoint(driver: Driver) -> None:
    driver.store.close()
    before = faulty(driver).snapshot()
    driver.opened_again()
    assert faulty(driver).snapshot() == before


def test_only_the_files_of_the_two_newest_checkpoints_are_kept(driver: Driver) -> None:
    for number in range(20):
        driver.hold(f"t{number}", message("x", keys=f"k{number}"))
        driver.store.checkpoint()
    named = {
        *latest(driver).state_files(),
        *(load(driver.disk, checkpoints.PREVIOUS) or latest(driver)).state_files(),
    }
    assert set(driver.disk.list("statetable")) == named
    assert len(driver.disk.list("keyindex")) < 20, "runs are merged"
    assert len(driver.reader.find("orders", "k3", limit=9)) == 0
    driver.commit(8)
    assert len(driver.reader.find("orders", "k3", limit=9)) == 1


def test_unwritten_and_invisible_records_are_not_in_a_checkpoint(driver: Driver) -> None:
    driver.store.execute(CheckSent(half_offset=0, client="c"), T0)
    with pytest.raises(AssertionError, match="only what is written"):
        driver.store.begin_checkpoint()


def test_a_checkpoint_flushes_what_durability_os_left_to_the_system() -> None:
    driver = Driver(durability="os")
    driver.append(message("a"))
    assert driver.crashed().bodies() == []
    driver.store.checkpoint()
    assert driver.crashed().bodies() == ["a"]


def test_records_written_during_a_checkpoints_flush_are_flushed_by_the_next() -> None:
    driver = Driver(durability="os")
    driver.append(message("a"))
    job = driver.store.begin_checkpoint()
    job.write()
    driver.append(message("b"))
    driver.store.end_checkpoint(job)
    assert driver.crashed().bodies() == ["a"]
    driver.store.checkpoint()
    assert driver.crashed().bodies() == ["a", "b"]
    assert driver.store.log.unflushed() == []


# While a checkpoint is written


def meanwhile(driver: Driver) -> None:
    """Every kind of change, to rows that the checkpoint has frozen and to new ones."""
    driver.append(message("new", keys="new", topic="fresh"))
    driver.commit(12, by="meanwhile")
    driver.roll_back(13, by="meanwhile")
    driver.do(CheckSent(half_offset=14, client="c"))
    driver.do(Park(half_offset=15, reason="by hand"))
    driver.hold("t14", message("more"), number=1)
    driver.hold("t11", message("third"), number=2)
    held = driver.hold("born meanwhile", message("z"), message("later", deliver_after_ms=5))
    driver.commit(held.half_offset, by="meanwhile")
    driver.clock.advance(ms=SECOND)
    driver.release()
    # The only needed row of the chunk that is about to leave memory.
    driver.commit(3, by="meanwhile")


@pytest.fixture
def frozen() -> Driver:
    """Seventeen rows, of which t11 has two.

    All but one row of the first chunk are decided, so it is about to leave memory.
    """
    driver = Driver()
    for row in range(16):
        driver.hold(f"t{row}", message(f"m{row}", keys=f"k{row}"), number=0)
    for row in (0, 1, 2, 4, 5, 6, 7):
        (driver.commit if row % 2 else driver.roll_back)(row, by=f"by {row}")
    driver.hold("t11", message("second"), number=1)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes"))
    return driver


BETWEEN: dict[str, Callable[[Driver], None]] = {
    "nothing": lambda _driver: None,
    "changes": meanwhile,
}


@pytest.mark.parametrize(
    ("before", "after"), [("nothing", "nothing"), ("changes", "nothing"), ("nothing", "changes")]
)
def test_records_written_during_a_checkpoint_are_replayed(
    frozen: Driver, before: str, after: str
) -> None:
    driver = frozen
    job = driver.store.begin_checkpoint()
    BETWEEN[before](driver)
    # Rows that will outlive their chunk are briefly in two places, and must count once.
    assert driver.store.table.needed == driver.crashed().store.table.needed
    due = driver.store.table.due(driver.clock.now_ms(), 100)
    assert len(due) == len(set(due))
    job.write()
    BETWEEN[after](driver)
    expected = driver.picture()
    # Not yet saved: the earlier checkpoint counts, and a crash loses nothing.
    assert driver.crashed().picture() == expected
    driver.store.end_checkpoint(job)
    assert driver.picture() == expected
    assert 0 not in driver.store.table.chunks
    for survivors in (nothing_survives, everything_survives):
        recovered = driver.crashed(survivors)
        assert recovered.picture() == expected
        assert recovered.crashed().picture() == expected
    driver.store.checkpoint()
    assert driver.picture() == expected
    assert driver.crashed().picture() == expected
    assert 3 in driver.store.table.survivors.rows


def test_a_crash_at_any_moment_of_a_checkpoint_loses_nothing(frozen: Driver) -> None:
    frozen.store.checkpoint()
    image = faulty(frozen).crash_image(nothing_survives)
    disk = FaultyDisk(image)
    driver = Driver(disk, clock=frozen.clock)
    meanwhile(driver)
    expected = driver.picture()
    begin = len(disk.journal)
    driver.store.checkpoint()
    explorer = CrashExplorer(disk.journal, image)
    explorer.advance_to(begin)
    judged = set()
    for point in explorer:
        for survivors in interesting_survivors(point.pending, singled_out_max=2):
            left = point.crash_image(survivors)
            if left not in judged:
                judged.add(left)
                assert Driver(FaultyDisk(left), clock=frozen.clock).picture() == expected
    assert len(judged) > 10


def test_a_checkpoint_may_be_written_in_another_thread(frozen: Driver) -> None:
    driver = frozen
    job = driver.store.begin_checkpoint()
    thread = threading.Thread(target=job.write)
    thread.start()
    meanwhile(driver)
    bodies = driver.bodies()
    thread.join()
    driver.store.end_checkpoint(job)
    assert driver.bodies() == bodies
    assert driver.crashed().picture() == driver.picture()
