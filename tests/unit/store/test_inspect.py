"""A store is checked without opening or changing it, and every kind of damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store import checkpoint as checkpoints
from escrowmq.store.commit_log import segment_path
from escrowmq.store.disk import OsDisk
from escrowmq.store.frames import close_frame, open_frame
from escrowmq.store.inspect import check
from escrowmq.store.report import FINDINGS_MAX, BadRange, Kind, QueueSpan, Report, Span
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import Operation
from escrowmq.testing.survivors import TornLast
from escrowmq.transaction.records import Record
from escrowmq.transaction.states import Resolution
from tests.unit.store.shop import CONFIG, Shop, frames_of, opened


@pytest.fixture(scope="module")
def shop() -> Shop:
    """A bit of everything, over several segments, with a checkpoint in the middle."""
    shop = Shop(seed=3).run(80, checkpoints=0)
    shop.store.checkpoint()
    shop.run(80, checkpoints=0)
    return shop


@pytest.fixture(scope="module")
def image(shop: Shop) -> DiskImage:
    return shop.image()


@pytest.fixture
def disk(image: DiskImage) -> FaultyDisk:
    return FaultyDisk(image)


def segments(disk: FaultyDisk) -> list[str]:
    return [f"commitlog/{name}" for name in disk.list("commitlog")]


def only_range(report: Report) -> BadRange:
    assert len(report.ranges) == 1
    return report.ranges[0]


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


# Intact.


def test_an_intact_store_is_described(shop: Shop, disk: FaultyDisk) -> None:
    report = check(disk)
    assert not report.is_damaged
    assert (report.version, report.log_start, report.log_end) == (1, 0, shop.store.log.end)
    assert [found.path for found in report.checkpoints] == ["checkpoint", "checkpoint.old"]
    assert all(found.is_whole for found in report.checkpoints)
    assert [found.path for found in report.segments] == segments(disk)
    assert sum(found.bytes for found in report.segments) == shop.store.log.end
    for before, after in zip(report.segments, report.segments[1:], strict=False):
        assert before.first_at_ms <= before.last_at_ms <= after.first_at_ms
    frames = frames_of(shop.store)
    assert report.counts.frames == len(frames)
    assert report.counts.queues == len(shop.store.queues)
    assert report.counts.visible == sum(queue.end for queue in shop.store.queues)


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


def test_what_retention_left_is_counted_too() -> None:
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
    assert json.loads(msgspec.json.encode(check(disk)))["version"] == 1


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
    assert (found.kind, found.log_offset, found.length) == (Kind.TORN, end, 100)
    assert (report.torn_bytes, report.log_end) == (100, end)
    assert opened(disk)[1].cut_bytes == 100


def test_what_the_next_start_puts_right_is_told(disk: FaultyDisk) -> None:
    """Unfinished files, segments past their retention, a tail that was written again."""
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


# Damage in the log.


def test_a_flipped_bit_is_found_and_the_store_refuses_to_start(
    shop: Shop, disk: FaultyDisk
) -> None:
    frame = next(frame for frame in frames_of(shop.store) if frame.start > shop.checkpointed)
    path = segments(disk)[-2]
    start = int(path.rpartition("/")[2])
    frame = next(frame for frame in frames_of(shop.store) if frame.start >= start)
    disk.flip_bit(path, frame.start - start + 50, 3)
    report = check(disk)
    found = only_range(report)
    assert (found.segment, found.kind) == (path, Kind.DAMAGED)
    assert (found.log_offset, found.end) == (frame.start, frame.end)
    assert report.is_damaged
    with pytest.raises(StoreCorrupt) as refused:
        opened(disk)
    assert refused.value.code == "log_damaged"
    assert refused.value.fields["segment"] == path
    assert refused.value.fields["log_offset"] == frame.start


def test_every_bit_of_a_frame_counts() -> None:
    shop = Shop()
    shop.prepare()
    shop.store.sync()
    end = shop.store.log.end
    for _ in range(2):
        shop.prepare()
        shop.store.sync()
    image = shop.image()
    for byte in range(end):
        disk = FaultyDisk(image)
        disk.flip_bit(segment_path(0), byte, byte % 8)
        found = only_range(check(disk))
        assert (found.kind, found.log_offset, found.end) == (Kind.DAMAGED, 0, end), byte


def test_it_tells_what_the_damaged_bytes_seem_to_say() -> None:
    shop = Shop()
    head = shop.prepare(2)
    for _ in range(2):
        shop.end(head, Resolution.COMMIT)
        shop.prepare()
        shop.store.sync()
    disk = FaultyDisk(shop.image())
    disk.flip_bit(segment_path(0), 60, 0)
    (says,) = only_range(check(disk)).says
    assert says == f"0: Prepared 't-0', half {head}, messages 2"


@pytest.mark.parametrize("byte", [0, 8, 12])
def test_damage_that_hides_its_own_length_ends_at_the_next_intact_frame(byte: int) -> None:
    shop = Shop()
    for _ in range(3):
        shop.prepare()
        shop.store.sync()
    frames = frames_of(shop.store)
    disk = FaultyDisk(shop.image())
    disk.flip_bit(segment_path(0), byte, 6)
    found = only_range(check(disk))
    assert (found.log_offset, found.end) == (0, frames[0].end)


def test_what_is_lost_with_a_range_below_the_checkpoint_is_listed() -> None:
    shop = Shop()
    heads = [shop.prepare(2), shop.prepare(), shop.prepare()]
    for head in heads[:2]:
        shop.end(head, Resolution.COMMIT)
    shop.store.sync()
    shop.store.checkpoint()
    frames = frames_of(shop.store)
    disk = FaultyDisk(shop.image())
    disk.flip_bit(segment_path(0), frames[0].start + 100, 0)
    disk.flip_bit(segment_path(0), frames[4].start + 45, 0)
    hits = check(disk).hits
    assert hits.halves == [Span(first=0, count=2)]
    assert hits.decisions == [Span(first=2, count=1)]
    assert sorted(hits.messages, key=repr) == sorted(
        [
            QueueSpan(topic=topic, queue_id=queue_id, first=offset, count=1)
            for topic, queue_id, offset in shop.places(0) | shop.places(1)
        ],
        key=repr,
    )


def test_a_missing_segment_is_a_hole(disk: FaultyDisk) -> None:
    path = segments(disk)[1]
    start, size = int(path.rpartition("/")[2]), disk.open(path).size()
    disk.remove(path)
    report = check(disk)
    assert {found.kind for found in report.ranges} == {Kind.MISSING}
    assert report.ranges[0].log_offset == start
    assert report.ranges[-1].end == start + size
    with pytest.raises(StoreCorrupt) as refused:
        opened(disk)
    assert refused.value.code == "log_segment_missing"
    assert refused.value.fields["log_offset"] == start


def test_a_first_segment_that_is_missing_is_a_hole(disk: FaultyDisk) -> None:
    disk.remove(segments(disk)[0])
    assert check(disk).ranges[0].log_offset == 0


def test_a_log_that_ends_before_its_checkpoint_is_too_short() -> None:
    shop = Shop(seed=1).run(60, checkpoints=0)
    shop.store.checkpoint()
    disk = FaultyDisk(shop.image())
    last = segments(disk)[-1]
    frames = frames_of(shop.store)
    cut = frames[-3].start
    disk.open(last).truncate(cut - int(last.rpartition("/")[2]))
    found = only_range(check(disk))
    assert (found.kind, found.log_offset, found.end) == (Kind.MISSING, cut, shop.store.log.end)


def test_a_log_without_any_segment_is_all_missing() -> None:
    shop = Shop(seed=1).run(20, checkpoints=0)
    shop.store.checkpoint()
    disk = FaultyDisk(shop.image())
    for path in segments(disk):
        disk.remove(path)
    found = only_range(check(disk))
    assert (found.kind, found.log_offset, found.end) == (Kind.MISSING, 0, shop.store.log.end)


def test_a_hole_after_which_nothing_is_known_as_flushed_is_torn() -> None:
    """A crash may keep the second of two new segments and lose the first."""
    shop = Shop()
    shop.prepare()
    shop.store.sync()
    end = shop.store.log.end
    while len(shop.store.log.segments) < 3:
        shop.prepare()
        shop.store.write()
    disk = FaultyDisk(shop.image())
    disk.remove(segments(disk)[1])
    frame = disk.open(segments(disk)[0])
    frame.truncate(end)
    report = check(disk)
    assert not report.is_damaged
    assert only_range(report).kind is Kind.TORN
    opened(disk)


def test_a_frame_of_a_newer_version_is_not_called_damage() -> None:
    shop = Shop()
    shop.prepare()
    shop.store.sync()
    end = shop.store.log.end
    disk = FaultyDisk(shop.image())
    shop.prepare()
    newer = shop.store.log.read(end, 1_000_000)
    disk.open(segment_path(0)).write_at(end, newer[:4] + b"\x02" + newer[5:])
    assert only_range(check(disk)).kind is Kind.VERSION_UNKNOWN
    with pytest.raises(StoreUnusable, match="frame_version_unknown"):
        opened(disk)


# What is wrong though every checksum is right.


def append(disk: FaultyDisk, shop: Shop, records: tuple[Record, ...], messages: bytes = b"") -> int:
    """Put a frame at the end of the log behind the store's back."""
    end = shop.store.log.end
    frame = open_frame([messages])
    close_frame(frame, records, (end, shop.now_ms, 0), shop.store.seed)
    segment = shop.store.log.segments[-1]
    disk.open(segment_path(segment.start)).write_at(end - segment.start, frame)
    return end


def replayed_from(shop: Shop, change: Callable[[Record], Record]) -> tuple[FaultyDisk, int]:
    """The last frame of a shop written again, its last record changed."""
    *names, record = shop.last_frame().records
    disk = FaultyDisk(shop.image())
    return disk, append(disk, shop, (*names, change(record)), shop.last_messages())


def test_messages_that_stand_where_they_do_not_say_are_found() -> None:
    shop = Shop()
    shop.append()
    disk, end = replayed_from(shop, lambda record: record)
    report = check(disk)
    assert "message_mismatch" in codes(report)
    assert report.findings[0].at == end + 44
    assert report.findings[0].what == "a message stands at another place than it says"
    # The same queue offsets a second time.
    assert "sequence_repeated" in codes(report)


def test_a_message_for_another_queue_than_its_record_says_is_found() -> None:
    shop = Shop()
    while len(shop.store.queues) < 2:
        shop.append()

    def other_queue(record: Record) -> Record:
        placed = record.placed  # type: ignore[union-attr]
        queue = 1 - placed.queues[0] if placed.queues[0] in (0, 1) else 0
        return msgspec.structs.replace(
            record, placed=msgspec.structs.replace(placed, queues=[queue])
        )

    disk, _ = replayed_from(shop, other_queue)
    assert any("another queue" in finding.what for finding in check(disk).findings)


def test_numbers_that_leave_a_gap_without_any_damage_are_found() -> None:
    shop = Shop()
    shop.append()

    def much_later(record: Record) -> Record:
        return msgspec.structs.replace(record, queue_offsets=[7])

    disk, _ = replayed_from(shop, much_later)
    report = check(disk)
    assert "sequence_gap" in codes(report)
    assert report.gaps == []


def test_records_of_a_newer_release_are_refused() -> None:
    shop = Shop()
    shop.append()
    disk = FaultyDisk(shop.image())
    append(disk, shop, ([99, "something new"],))  # type: ignore[arg-type]
    for look in (check, opened):
        with pytest.raises(StoreUnusable, match="records_unknown"):
            look(disk)


def test_a_message_that_cannot_be_read_is_found() -> None:
    shop = Shop()
    shop.append()
    record = shop.last_frame().records[-1]
    garbage = bytearray(shop.last_messages())
    garbage[4:8] = b"what"

    def vouched(record: Record) -> Record:
        from escrowmq.protocol.stored_message import record_crc

        placed = record.placed  # type: ignore[union-attr]
        return msgspec.structs.replace(
            record, placed=msgspec.structs.replace(placed, crcs=[record_crc(bytes(garbage))])
        )

    disk = FaultyDisk(shop.image())
    append(disk, shop, (vouched(record),), bytes(garbage))
    assert any("cannot be read" in finding.what for finding in check(disk).findings)


def test_only_so_many_findings_are_kept() -> None:
    report = Report(version=1)
    for number in range(FINDINGS_MAX + 5):
        report.note("store_foreign", str(number), "not ours")
    assert len(report.findings) == FINDINGS_MAX
    assert report.findings_left_out == 5


# Projections and checkpoints.


def named_files(disk: FaultyDisk) -> dict[str, list[str]]:
    checkpoint = checkpoints.load(disk, checkpoints.PATH)
    assert checkpoint is not None
    return {
        "state_table_damaged": [f"statetable/{name}" for name in checkpoint.state_files()],
        "key_index_damaged": [f"keyindex/{name}" for name in checkpoint.key_runs],
        "consume_queue_damaged": [
            f"consumequeue/{named.topic}/{named.queue_id}/{0:020d}" for named in checkpoint.queues
        ],
    }


@pytest.mark.parametrize("how", ["flipped", "missing", "cut", "emptied"])
@pytest.mark.parametrize(
    "code", ["state_table_damaged", "key_index_damaged", "consume_queue_damaged"]
)
def test_each_kind_of_projection_is_checked(disk: FaultyDisk, code: str, how: str) -> None:
    for path in named_files(disk)[code]:
        copy = FaultyDisk(disk.crash_image(lambda pending: pending))
        size = copy.open(path).size()
        if how == "flipped":
            copy.flip_bit(path, size - 40, 2)
        elif how == "missing":
            copy.remove(path)
        else:
            copy.open(path).truncate(size - 1 if how == "cut" else 0)
        report = check(copy)
        assert [(found.code, found.path) for found in report.findings] == [(code, path)]
        assert report.is_damaged


def test_a_key_run_of_a_newer_version_is_told(disk: FaultyDisk) -> None:
    import struct
    import zlib

    path = named_files(disk)["key_index_damaged"][0]
    file = disk.open(path)
    header = bytearray(file.read_at(0, 4096))
    header[8:12] = struct.pack("<I", 2)
    blocks = file.read_at(4096, file.size())
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4], zlib.crc32(blocks)))
    file.write_at(0, header)
    assert codes(check(disk)) == {"key_index_version_unknown"}


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(disk: FaultyDisk) -> None:
    disk.flip_bit("checkpoint", 100, 1)
    report = check(disk)
    assert [found.is_whole for found in report.checkpoints] == [False, True]
    assert codes(report) == {"checkpoint_damaged"}


def test_without_any_checkpoint_a_log_that_starts_at_0_is_all_that_is_needed(
    disk: FaultyDisk,
) -> None:
    disk.remove("checkpoint")
    disk.remove("checkpoint.old")
    report = check(disk)
    assert not report.is_damaged
    assert report.checkpoints == []


def test_without_any_checkpoint_a_log_that_lost_its_prefix_is_useless() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    assert shop.store.log.start > 0
    disk = FaultyDisk(shop.image())
    disk.remove("checkpoint")
    disk.remove("checkpoint.old")
    report = check(disk)
    assert codes(report) == {"checkpoint_missing"}
    assert report.ranges == []


class BusyDisk(FaultyDisk):
    """While the check reads a projection, the broker takes its next checkpoint."""

    shop: Shop
    checkpoints_left = 0

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def] # noqa: ANN201
        if path.startswith("statetable/") and self.checkpoints_left and not create:
            self.checkpoints_left -= 1
            self.shop.append()
            self.shop.store.checkpoint()
        return super().open(path, create=create)


@pytest.mark.parametrize("times", [1, 10])
def test_a_checkpoint_taken_meanwhile_is_read_again(times: int) -> None:
    disk = BusyDisk()
    shop = Shop(disk=disk)
    disk.shop = shop
    for _ in range(3):
        shop.prepare()
    shop.store.sync()
    shop.store.checkpoint()
    disk.checkpoints_left = times
    report = check(disk)
    assert not report.damage
    if times == 1:
        assert not report.is_damaged


# Not a store, or not one that we know.


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
    made["version"] = 2
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


def test_the_journal_of_the_shop_is_not_empty(shop: Shop) -> None:
    """The other tests would prove nothing otherwise."""
    journal: list[Operation] = shop.disk.journal
    assert len(journal) > 100
    assert len(shop.store.log.segments) > 3
    assert CONFIG.segment_bytes_max < shop.store.log.end
