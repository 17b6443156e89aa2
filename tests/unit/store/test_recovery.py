"""Opening a store: lost or damaged projections are rebuilt from the log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import Truncate, Write
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import CheckSent, Park, Resume
from tests.unit.logged import event_of, events
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, faulty, message


def lived(driver: Driver) -> Driver:
    """Everything that a store can hold: several chunks, segments, queues and checkpoints."""
    for row in range(12):
        driver.hold(f"t{row}", message(f"m{row}", keys=f"k{row}", queue_id=row % 2))
        if row not in (2, 9, 10):
            (driver.commit if row % 3 else driver.roll_back)(row, by=f"by {row}")
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message(bytes(3000), topic="filler"), message("b"), message("c", queue_id=1))
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [2]
    driver.hold("many", *[message(f"n{number}") for number in range(9)], number=0)
    driver.hold("many", message("last", deliver_after_ms=HOUR), number=1)
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.do(CheckSent(half_offset=9, client="c"))
    driver.do(Park(half_offset=10, reason="by hand"))
    driver.do(Park(half_offset=9, reason="by hand"))
    driver.clock.advance(ms=SECOND)
    driver.do(Resume(half_offset=9, by="admin"))
    driver.hold("batch", message("x"), message("y", topic="other"), number=0, bulk=True)
    driver.decide_batch(3, ("batch", 0, 2))
    driver.append(message(bytes(3000), topic="filler"))
    driver.store.checkpoint()
    driver.commit(12, by="after the checkpoint")
    driver.append(message("after the checkpoint", keys="k3"))
    return driver


@pytest.fixture
def driver() -> Driver:
    return lived(Driver())


def test_a_new_store_is_empty() -> None:
    driver = Driver()
    assert (driver.found.replayed_from, driver.store.recovered_at, driver.found.frames) == (0, 0, 0)
    assert driver.picture()["rows"] == {}
    assert driver.opened_again().found.rebuilt_because == ""


def test_only_what_came_after_the_checkpoint_is_replayed(driver: Driver) -> None:
    before = driver.picture()
    after = driver.crashed()
    assert after.found.frames == 2
    assert after.found.rebuilt_because == ""
    assert after.picture() == before
    again = after.crashed()
    assert again.found.frames == 0
    assert again.picture() == before


def test_everything_is_the_same_on_a_real_disk(tmp_path: Path, driver: Driver) -> None:
    real = lived(Driver(OsDisk(tmp_path / "store")))
    expected = driver.picture()
    assert real.picture() == expected
    assert real.closed_and_opened().picture() == expected
    assert Driver(FaultyDisk.from_directory(tmp_path / "store")).picture() == expected


# Projections


def flip(disk: FaultyDisk, path: str) -> None:
    disk.flip_bit(path, len(disk.snapshot()[path]) - 3, 5)


def cut(disk: FaultyDisk, path: str) -> None:
    disk.open(path).truncate(len(disk.snapshot()[path]) - 1)


def empty(disk: FaultyDisk, path: str) -> None:
    disk.open(path).truncate(0)


def remove(disk: FaultyDisk, path: str) -> None:
    disk.remove(path)


DAMAGES = (flip, cut, empty, remove)


def live_files(driver: Driver, kind: str) -> list[str]:
    """Files of one kind that the newest checkpoint needs at once."""
    store = driver.store
    names = {
        "chunk": [f"statetable/{chunk.name}" for chunk in store.table.files.chunks[1:]],
        "survivors": [f"statetable/survivors.{store.table.files.survivors_generation}"],
        "queue": [f"{store.queues[0].prefix}00000000000000000000"],
        "keys": [f"keyindex/{name}" for name in store.keys.names()],
    }
    assert all(driver.disk.exists(path) for path in names[kind])
    return names[kind]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", ["chunk", "survivors", "queue", "keys"])
def test_a_damaged_projection_is_made_anew_and_equal(
    driver: Driver,
    kind: str,
    damage: Callable[[FaultyDisk, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = driver.picture()
    for path in live_files(driver, kind):
        damage(faulty(driver), path)
    after = driver.opened_again()
    assert "damaged" in after.found.rebuilt_because
    assert after.found.replayed_from == 0
    assert "projection_damaged" in events(caplog)
    assert after.picture() == before
    assert len(after.reader.find("orders", "k3", limit=9)) == 1
    again = after.opened_again()
    assert (again.found.rebuilt_because, again.found.frames) == ("", 0)
    assert again.picture() == before


def test_all_projections_may_be_lost_at_once(driver: Driver) -> None:
    before = driver.picture()
    for path in faulty(driver).snapshot():
        if path.startswith(("statetable/", "consumequeue/", "keyindex/")):
            driver.disk.remove(path)
    assert driver.opened_again().picture() == before


def test_a_store_may_be_rebuilt_again_and_again(driver: Driver) -> None:
    expected = driver.picture()
    for _ in range(3):
        for path in live_files(driver, "keys"):
            flip(faulty(driver), path)
        driver = driver.opened_again()
        assert driver.found.rebuilt_because
        assert driver.picture() == expected


def test_a_crash_at_any_moment_of_a_rebuild_loses_nothing(driver: Driver) -> None:
    expected = driver.picture()
    for path in live_files(driver, "keys"):
        flip(faulty(driver), path)
    image = faulty(driver).crash_image(nothing_survives)
    disk = FaultyDisk(image)
    # So small that the rebuild writes rows to files before it has read their decisions.
    Driver(disk, clock=driver.clock, checkpoint_bytes=4096)
    judged: set[DiskImage] = set()
    for point in CrashExplorer(disk.journal, image):
        for survivors in (nothing_survives, everything_survives):
            left = point.crash_image(survivors)
            if left not in judged:
                judged.add(left)
                assert Driver(FaultyDisk(left), clock=driver.clock).picture() == expected
    assert len(judged) > 10
    # The rebuild wrote to no file of rows that the checkpoint names.
    written = {one.path for one in disk.journal if isinstance(one, Write | Truncate)}
    assert {path for path in written if path.startswith("statetable/")}
    assert not {path for path in written & image.files.keys() if path.startswith("statetable/")}


def test_a_damaged_entry_in_the_middle_of_a_queue_is_seen_when_it_is_read(driver: Driver) -> None:
    driver.store.checkpoint()
    faulty(driver).flip_bit("consumequeue/00000000.00000000000000000000", 40, 0)
    after = driver.opened_again()
    with pytest.raises(StoreCorrupt) as refused:
        after.bodies()
    assert refused.value.code == "consume_queue_damaged"


# Checkpoints


def test_a_damaged_checkpoint_leaves_the_one_before_and_a_rebuild(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    before = driver.picture()
    flip(faulty(driver), "checkpoint")
    after = driver.opened_again()
    assert after.found.rebuilt_because == "the newest checkpoint is damaged"
    warnings = {event_of(record): vars(record) for record in caplog.records}
    assert warnings["checkpoint_damaged"]["has_previous"] is True
    assert after.picture() == before


def test_a_crash_between_its_two_names_leaves_the_one_before(driver: Driver) -> None:
    before = driver.picture()
    driver.disk.remove("checkpoint")
    after = driver.opened_again()
    assert after.found.rebuilt_because == ""
    assert after.found.frames > 2
    assert after.picture() == before


@pytest.mark.parametrize("damage", [flip, remove], ids=["damaged", "lost"])
def test_without_any_checkpoint_a_log_from_its_beginning_is_enough(
    driver: Driver, damage: Callable[[FaultyDisk, str], None]
) -> None:
    before = driver.picture()
    for name in ("checkpoint", "checkpoint.old"):
        damage(faulty(driver), name)
    after = driver.opened_again()
    assert after.found.replayed_from == 0
    assert after.picture() == before
    assert after.opened_again().found.frames == 0


@pytest.mark.parametrize("damage", [flip, remove], ids=["damaged", "lost"])
def test_without_any_checkpoint_a_log_with_a_deleted_prefix_is_refused(
    driver: Driver, damage: Callable[[FaultyDisk, str], None]
) -> None:
    driver.roll_segment()
    driver.clock.advance(ms=24 * HOUR)
    start = driver.retain().log_start
    assert start > 0
    disk = faulty(driver)
    for name in ("checkpoint", "checkpoint.old"):
        damage(disk, name)
    log = {path: data for path, data in disk.snapshot().items() if path.startswith("commitlog")}
    for _ in range(2):
        with pytest.raises(StoreCorrupt) as refused:
            driver.opened_again()
        assert refused.value.code == "checkpoint_missing"
        assert refused.value.fields == {"path": "checkpoint", "log_start": start}
    assert {path: disk.snapshot()[path] for path in log} == log


# Settings that change, and stores that must not be opened


def test_the_rows_of_a_chunk_are_chosen_once(driver: Driver) -> None:
    before = driver.picture()
    after = driver.crashed(chunk_rows=1024)
    assert after.store.table.chunk_rows == 8
    assert after.picture() == before
    assert after.closed_and_opened(chunk_rows=16).picture() == before


def test_the_size_of_segments_may_change(driver: Driver) -> None:
    before = driver.picture()
    count = len(driver.store.log.segments)
    larger = driver.crashed(segment_bytes_max=2**20)
    assert larger.picture() == before
    for _ in range(5):
        larger.append(message(bytes(3000), topic="filler"))
    assert len(larger.store.log.segments) <= count + 1
    smaller = larger.crashed(segment_bytes_max=4096)
    assert smaller.picture() == larger.picture()
    assert smaller.roll_segment() == smaller.store.log.segments[-1].start


def test_a_store_of_a_newer_version_is_left_as_it_is(driver: Driver) -> None:
    disk = faulty(driver)
    disk.open("format").write_at(0, b'{"version":9')
    before = disk.snapshot()
    with pytest.raises(StoreUnusable) as refused:
        driver.opened_again()
    assert refused.value.code == "store_version_unknown"
    assert disk.snapshot() == before


def test_recovery_says_what_it_found(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "escrowmq.store.recovery.recovery")
    after = driver.crashed()
    facts = {event_of(record): vars(record) for record in caplog.records}["store_recovered"]
    assert facts["frames"] == 2
    assert facts["log_end"] == after.store.log.end
    assert facts["cut_bytes"] == 0
    assert facts["rebuilt_because"] == ""


def test_times_go_on_from_the_latest_in_the_log() -> None:
    driver = Driver()
    driver.clock.advance(ms=HOUR)
    driver.append(message("a"))
    driver.store.checkpoint()
    driver.clock.set(T0)
    assert driver.crashed().store.last_at_ms == T0 + HOUR
    driver.append(message("b"))
    assert driver.crashed().store.last_at_ms == T0 + HOUR


@pytest.mark.parametrize("enabled", [True, False])
def test_the_cycle_collector_is_left_as_it_was(driver: Driver, *, enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        driver.crashed()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
