"""A store is checked without opening or changing it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.model.resolution import Resolution
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.recovery.format import VERSION
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.report import RangeKind
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import TornLast
from tests.unit.store.damage import only_range, segments
from tests.unit.store.shop import Shop, frames_of, opened

# Intact.


def test_an_intact_store_is_described(shop: Shop, disk: FaultyDisk) -> None:
    report = check(disk)
    assert not report.is_damaged
    assert (report.version, report.log_start, report.log_end) == (VERSION, 0, shop.store.log.end)
    assert [found.path for found in report.checkpoints] == ["checkpoint", "checkpoint.old"]
    assert all(found.is_whole for found in report.checkpoints)
    assert [found.path for found in report.segments] == segments(disk)
    assert sum(found.bytes for found in report.segments) == shop.store.log.end
    for before, after in zip(report.segments, report.segments[1:], strict=False):
        assert before.first_at_ms <= before.last_at_ms <= after.first_at_ms
    frames = frames_of(shop.store)
    assert report.counts.frames == len(frames)
    assert report.counts.queues == len(shop.store.queues)
    assert report.counts.visible == sum(queue.end for queue in shop.store.queues.values())


def test_transactions_are_counted_by_their_states() -> None:
    shop = Shop()
    heads = [shop.prepare(2) for _ in range(6)]
    for head in heads[:3]:
        shop.end(head, Resolution.COMMIT)
    shop.end(heads[3], Resolution.ROLLBACK)
    shop.park(heads[4])
    shop.store.sync()
    counts = check(shop.disk).counts
    assert (counts.committed, counts.rolled_back) == (3, 1)
    assert (counts.prepared, counts.parked, counts.halves) == (1, 1, 12)
    shop.resume(heads[4])
    shop.store.sync()
    counts = check(shop.disk).counts
    assert (counts.prepared, counts.parked) == (2, 0)


def test_messages_that_retention_left_are_counted_too() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    assert shop.store.log.start > 0
    report = check(FaultyDisk(shop.image()))
    assert not report.is_damaged
    undecided = [head for head in shop.open if shop.store.table.get(head) is not None]
    assert report.counts.prepared + report.counts.parked == len(undecided)


def test_nothing_is_changed(disk: FaultyDisk) -> None:
    before = disk.snapshot()
    disk.read_only = True
    check(disk)
    assert disk.journal == []
    assert disk.snapshot() == before


def test_a_real_directory_is_read_without_any_right_to_write(
    image: DiskImage, tmp_path: Path
) -> None:
    image.to_directory(tmp_path)
    disk = OsDisk(tmp_path, read_only=True)
    assert not check(disk).is_damaged
    with pytest.raises(OSError, match="Read-only"):
        disk.remove("format")


def test_a_report_can_be_written_as_json(disk: FaultyDisk) -> None:
    assert json.loads(msgspec.json.encode(check(disk)))["version"] == VERSION


# What a crash leaves.


def test_a_torn_tail_is_no_damage() -> None:
    shop = Shop()
    for _ in range(4):
        shop.prepare()
        shop.store.sync()
    end = shop.store.log.end
    shop.prepare()
    shop.store.write()
    disk = shop.disk.crash(TornLast(100))
    report = check(disk)
    assert not report.is_damaged
    found = only_range(report)
    assert (found.kind, found.log_offset, found.length) == (RangeKind.TORN, end, 100)
    assert report.log_end == end
    assert opened(disk)[1].cut_bytes == 100


def test_repairs_of_the_next_start_are_told(disk: FaultyDisk) -> None:
    """Unfinished files, and a segment whose end was written again."""
    first, second = segments(disk)[:2]
    disk.open("commitlog/1.tmp", create=True)
    disk.open("checkpoint.tmp", create=True)
    size = disk.open(first).size()
    disk.open(first).write_at(size, b"written again")
    report = check(disk)
    assert not report.is_damaged
    assert report.leftovers == [
        "checkpoint.tmp: an unfinished file",
        "commitlog/1.tmp: an unfinished file",
        f"{first}: its end was written again",
    ]
    assert second


def test_a_segment_that_retention_was_about_to_delete_is_no_damage() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    assert shop.store.log.start > 0
    disk = FaultyDisk(shop.image())
    disk.open(segment_path(0), create=True).write_at(0, b"old")
    report = check(disk)
    assert not report.is_damaged
    assert report.leftovers == [f"{segment_path(0)}: its retention is over"]


# Not a store, or one of an unknown version.


def test_an_empty_directory_is_no_store() -> None:
    with pytest.raises(StoreUnusable) as refused:
        check(FaultyDisk())
    assert refused.value.code == "store_missing"


@pytest.mark.parametrize("path", ["notes.txt", "commitlog/notes.txt", "commitlog/123"])
def test_a_file_that_is_not_ours_is_told(disk: FaultyDisk, path: str) -> None:
    disk.open(path, create=True)
    report = check(disk)
    assert [(found.code, found.path) for found in report.findings] == [("store_foreign", path)]
    with pytest.raises(StoreUnusable, match="store_foreign"):
        opened(disk)


def test_a_store_of_another_format_version_is_refused(disk: FaultyDisk) -> None:
    made = json.loads(disk.open("format").read_at(0, 1_000))
    made["version"] = VERSION + 1
    file = disk.open("format")
    file.truncate(0)
    file.write_at(0, json.dumps(made).encode())
    with pytest.raises(StoreUnusable) as refused:
        check(disk)
    assert refused.value.code == "store_version_unknown"


def test_a_damaged_format_file_is_refused(disk: FaultyDisk) -> None:
    disk.open("format").truncate(5)
    with pytest.raises(StoreCorrupt) as refused:
        check(disk)
    assert refused.value.code == "format_damaged"
