"""Damage in the log is found and named, even where the store would not notice."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.model.resolution import Resolution
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.log.frames import close_frame, open_frame
from escrowmq.store.repair.inspect import check, inspect
from escrowmq.store.repair.report import FINDINGS_MAX, NumberSpan, QueueSpan, RangeKind, StoreReport
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.records import Record
from tests.unit.store.damage import codes, only_range, segments
from tests.unit.store.shop import Shop, frames_of, opened

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
    assert (found.segment, found.kind) == (path, RangeKind.DAMAGED)
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
        assert (found.kind, found.log_offset, found.end) == (RangeKind.DAMAGED, 0, end), byte


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


def test_losses_in_a_range_below_the_checkpoint_are_listed() -> None:
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
    assert hits.halves == [NumberSpan(first=0, count=2)]
    assert hits.decisions == [NumberSpan(first=2, count=1)]
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
    assert {found.kind for found in report.ranges} == {RangeKind.MISSING}
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
    assert (found.kind, found.log_offset, found.end) == (RangeKind.MISSING, cut, shop.store.log.end)


def test_a_log_without_any_segment_is_all_missing() -> None:
    shop = Shop(seed=1).run(20, checkpoints=0)
    shop.store.checkpoint()
    disk = FaultyDisk(shop.image())
    for path in segments(disk):
        disk.remove(path)
    found = only_range(check(disk))
    assert (found.kind, found.log_offset, found.end) == (RangeKind.MISSING, 0, shop.store.log.end)


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
    assert only_range(report).kind is RangeKind.TORN
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
    assert only_range(check(disk)).kind is RangeKind.VERSION_UNKNOWN
    with pytest.raises(StoreUnusable, match="frame_version_unknown"):
        opened(disk)


# Errors although every checksum is right.


def append(disk: FaultyDisk, shop: Shop, records: tuple[Record, ...], messages: bytes = b"") -> int:
    """Write a frame at the end of the log without the store; return where it starts."""
    end = shop.store.log.end
    frame = open_frame([messages])
    close_frame(frame, records, (end, shop.now_ms, 0), shop.store.seed)
    segment = shop.store.log.segments[-1]
    disk.open(segment_path(segment.start)).write_at(end - segment.start, frame)
    return end


def replayed_from(shop: Shop, change: Callable[[Record], Record]) -> tuple[FaultyDisk, int]:
    """Write the shop's last frame again, with its last record changed."""
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
    assert report.findings[0].what == "a message is at another log offset than it states"
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
        from escrowmq.protocol.message.stored_message import record_crc

        placed = record.placed  # type: ignore[union-attr]
        return msgspec.structs.replace(
            record, placed=msgspec.structs.replace(placed, crcs=[record_crc(bytes(garbage))])
        )

    disk = FaultyDisk(shop.image())
    append(disk, shop, (vouched(record),), bytes(garbage))
    assert any("cannot be read" in finding.what for finding in check(disk).findings)


def test_only_so_many_findings_are_kept() -> None:
    report = StoreReport(version=1)
    for number in range(FINDINGS_MAX + 5):
        report.note("store_foreign", str(number), "not ours")
    assert len(report.findings) == FINDINGS_MAX
    assert report.findings_left_out == 5


def test_an_unreadable_group_is_left_empty() -> None:
    """An origin whose name is lost is learned from messages, some of which do not name it."""
    for properties in (b"\xff\xfe", b"KEYS\x01k\x02"):
        shop = Shop()
        shop.prepare_with(properties, "the group")
        shop.prepare_with(properties, "the group")
        shop.confirm()
        disk = FaultyDisk(shop.image())
        disk.flip_bit(segment_path(0), 46, 0)
        origins = inspect(disk).origins
        assert "" in {named.group for named in origins.values()}


def test_numbers_are_named_in_a_finding() -> None:
    shop = Shop()
    shop.prepare()
    shop.store.sync()

    def later(record: Record) -> Record:
        return msgspec.structs.replace(record, first=9, head=9)

    disk, _ = replayed_from(shop, later)
    assert any("half 1 to 8 were never given" in one.what for one in check(disk).findings)
