"""Damaged files are moved aside; what cannot be repaired is left alone."""

from __future__ import annotations

import errno

import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.repair import end_lost, fixable, repair
from escrowmq.testing.faulty_disk import DiskCall as Call
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives
from tests.unit.store.damage import damaged, repaired
from tests.unit.store.shop import Shop, frames_of, opened, truth_of


def test_damaged_projections_are_moved_aside_and_made_again() -> None:
    shop = Shop(seed=12).run(120, checkpoints=0.1)
    shop.store.checkpoint()
    truth = truth_of(shop.store)
    image = shop.image()
    checkpoint = checkpoints.load(FaultyDisk(image), checkpoints.PATH)
    assert checkpoint is not None
    paths = [
        *(f"statetable/{name}" for name in checkpoint.state_files()),
        *(f"keyindex/{name}" for name in checkpoint.key_runs),
        *(path for path in image.files if path.startswith("consumequeue/")),
    ]
    assert len(paths) > 6
    for path in paths:
        disk = FaultyDisk(image)
        disk.flip_bit(path, len(image.files[path]) - 5, 1)
        content = disk.snapshot()[path]
        aside = FaultyDisk()
        done = repair(disk, aside)
        assert done.is_rebuilt
        assert [(one.path, one.copy) for one in done.copies] == [(path, path)]
        assert aside.durable_snapshot()[path] == content
        store, found = opened(disk)
        assert found.rebuilt_because.startswith(path)
        assert truth_of(store) == truth
        assert not check(disk).is_damaged
        assert opened(disk)[1].rebuilt_because == ""


def test_a_projection_that_is_gone_is_made_again() -> None:
    shop = Shop(seed=12).run(60)
    shop.store.checkpoint()
    disk = FaultyDisk(shop.image())
    path = next(path for path in disk.snapshot() if path.startswith("consumequeue/"))
    disk.remove(path)
    store, _, done = repaired(disk)
    assert (done.copies, done.is_rebuilt) == ([], True)
    assert truth_of(store) == truth_of(shop.store)


@pytest.mark.parametrize("path", ["checkpoint", "checkpoint.old"])
def test_a_damaged_checkpoint_is_moved_aside(path: str) -> None:
    shop = Shop(seed=13).run(100, checkpoints=0.05)
    disk = FaultyDisk(shop.image())
    disk.flip_bit(path, 70, 1)
    content = disk.snapshot()[path]
    announced = [one.path for one in fixable(check(disk))]
    store, aside, done = repaired(disk)
    assert [one.path for one in done.copies] == announced == [path]
    assert aside.durable_snapshot()[path] == content
    assert truth_of(store) == truth_of(shop.store)


def test_with_both_checkpoints_damaged_the_whole_log_is_replayed() -> None:
    shop = Shop(seed=13).run(100, checkpoints=0.05)
    disk = damaged(shop, frames_of(shop.store)[3])
    disk.flip_bit("checkpoint", 70, 1)
    disk.flip_bit("checkpoint.old", 70, 1)
    store, _, done = repaired(disk)
    assert len(done.copies) == 3
    assert not done.is_rebuilt
    assert store.log.end == shop.store.log.end


# Not repairable.


def test_a_foreign_file_must_be_moved_by_a_person() -> None:
    disk = FaultyDisk(Shop().image())
    disk.open("notes.txt", create=True)
    with pytest.raises(StoreUnusable, match="store_foreign"):
        repair(disk, FaultyDisk())


def test_a_newer_log_is_not_repaired() -> None:
    shop = Shop()
    shop.append()
    end_offset = shop.store.log.end
    shop.append()
    disk = FaultyDisk(shop.image())
    file = disk.open(segment_path(0))
    file.write_at(end_offset + 4, b"\x02")
    with pytest.raises(StoreUnusable, match="frame_version_unknown"):
        repair(disk, FaultyDisk())


def test_a_log_without_its_beginning_and_without_a_checkpoint_is_not_repaired() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    disk = FaultyDisk(shop.image())
    disk.flip_bit("checkpoint", 70, 1)
    disk.flip_bit("checkpoint.old", 70, 1)
    with pytest.raises(StoreCorrupt, match="checkpoint_missing"):
        repair(disk, FaultyDisk())
    assert check(disk).damage == []


def test_nothing_is_changed_if_the_copy_cannot_be_made() -> None:
    shop = Shop(seed=2).run(60)
    disk = damaged(shop, frames_of(shop.store)[10])
    before = disk.snapshot()
    aside = FaultyDisk()
    aside.capacity_bytes = 10
    with pytest.raises(OSError, match="No space left"):
        repair(disk, aside)
    assert disk.snapshot() == before


def test_a_repair_that_was_interrupted_anywhere_can_be_done_again() -> None:
    shop = Shop(seed=14).run(120, checkpoints=0.03)
    shop.store.checkpoint()
    shop.append()
    frames = frames_of(shop.store)
    image = damaged(shop, frames[10], frames[-3]).crash_image(everything_survives)
    path = next(path for path in image.files if path.startswith("statetable/"))
    expected = None
    calls = 0
    while expected is None or calls < 200:
        disk = FaultyDisk(image)
        disk.flip_bit(path, 30, 1)
        for call in (Call.WRITE, Call.FLUSH, Call.RENAME, Call.REMOVE, Call.FLUSH_DIRECTORY):
            disk.fail_after(call, calls, errno.EIO)
        try:
            repair(disk, FaultyDisk())
        except OSError:
            disk = disk.crash(everything_survives)
            repair(disk, FaultyDisk())
        else:
            disk, calls = disk.crash(everything_survives), 200
        store, _ = opened(disk)
        end_lost(store, shop.now_ms)
        truth = truth_of(store)
        expected = expected or truth
        assert truth == expected
        assert not check(disk).is_damaged
        calls += 1
