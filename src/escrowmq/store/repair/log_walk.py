"""Reads the whole log, intact or not, without changing it.

Recovery stops at the first bad frame; this walk continues after it. ``tail.judge`` tells torn
ranges from damage, so an inspection reports what the next start will do.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.log.commit_log import (
    DIRECTORY,
    TEMPORARY,
    CommitLog,
    Segment,
    read_frames,
    segment_path,
)
from escrowmq.store.log.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    Frame,
    decode_records,
    stated_head,
)
from escrowmq.store.log.tail import judge, later_frames
from escrowmq.store.repair.report import BadRange, RangeKind
from escrowmq.transaction.records import NamedOrigin, NamedQueue, Prepared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.repair.report import StoreReport
    from escrowmq.transaction.records import Record

SAYS_MAX = 20
"""Records of a bad range that are described, as far as they can be read."""

_NAME_CHARS = len(f"{0:020d}")


class FoundFrame(msgspec.Struct, frozen=True):
    """An intact frame and its segment."""

    segment: Segment
    frame: Frame

    def messages(self) -> bytes:
        """The bytes between head and records."""
        start = self.frame.messages - self.segment.start
        return self.segment.file.read_at(start, self.frame.records_at - HEAD_BYTES)


def open_log(disk: Disk, log_start: int, report: StoreReport) -> CommitLog:
    """Open the segments as the next start will, and report what that start will clean up."""
    log = CommitLog(disk, segment_bytes_max=0)
    starts = []
    for name in disk.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        if name.endswith(TEMPORARY):
            report.leftovers.append(f"{path}: an unfinished file")
        elif name.isdecimal() and len(name) == _NAME_CHARS:
            starts.append(int(name))
        else:
            report.note("store_foreign", path, "not a file of the store")
    for at, start in enumerate(starts):
        after = starts[at + 1] if at + 1 < len(starts) else None
        if after is not None and after <= log_start:
            report.leftovers.append(f"{segment_path(start)}: its retention is over")
            continue
        file = disk.open(segment_path(start))
        size = file.size()
        if after is not None and start + size > after:
            report.leftovers.append(f"{segment_path(start)}: its end was written again")
            size = after - start
        log.segments.append(Segment(start, file, size))
    return log


def walk(
    log: CommitLog, seed: int, *, log_start: int, checkpointed: Collection[int]
) -> Iterator[FoundFrame | BadRange]:
    """Yield every intact frame and every bad range, in log order.

    ``checkpointed`` are the log offsets at which checkpoints end: everything below was flushed, and
    a frame starts there. A torn range is the last item.
    """
    flushed = max(checkpointed, default=0)
    for found in _walk(log, seed, log_start, flushed):
        if isinstance(found, FoundFrame) or found.kind is RangeKind.TORN:
            yield found
        else:
            yield from _split(found, checkpointed)


def _split(found: BadRange, borders: Collection[int]) -> Iterator[BadRange]:
    """Split the range at each border, because a replay may start there."""
    inside = sorted(border for border in borders if found.log_offset < border < found.end)
    for start, end in pairwise((found.log_offset, *inside, found.end)):
        says = found.says if start == found.log_offset else []
        yield msgspec.structs.replace(found, log_offset=start, length=end - start, says=says)


def _walk(
    log: CommitLog, seed: int, log_start: int, flushed: int
) -> Iterator[FoundFrame | BadRange]:
    offset = log_start
    for segment in log.segments:
        if segment.start > offset:
            hole = BadRange(
                segment=segment_path(offset),
                log_offset=offset,
                length=segment.start - offset,
                kind=_judged(log, seed, offset, flushed),
            )
            yield _missing(hole)
            if hole.kind is RangeKind.TORN:
                return
        offset = segment.start
        while offset < segment.end:
            for frame in read_frames(segment, seed, from_offset=offset, end=segment.end):
                yield FoundFrame(segment, frame)
                offset = frame.end
            if offset < segment.end:
                found = _bad_range(log, seed, segment, offset, flushed)
                yield found
                if found.kind is RangeKind.TORN:
                    return
                offset = found.end
    if offset < flushed:
        yield BadRange(
            segment=segment_path(log.segments[-1].start if log.segments else offset),
            log_offset=offset,
            length=flushed - offset,
            kind=RangeKind.MISSING,
        )


def _missing(hole: BadRange) -> BadRange:
    if hole.kind is RangeKind.DAMAGED:
        return msgspec.structs.replace(hole, kind=RangeKind.MISSING)
    return hole


def _bad_range(log: CommitLog, seed: int, segment: Segment, offset: int, flushed: int) -> BadRange:
    kind = _judged(log, seed, offset, flushed)
    if kind is RangeKind.TORN:
        end = log.segments[-1].end
        says = []
    else:
        intact = next(later_frames(log, seed, offset), None)
        if intact is not None and intact.log_offset < segment.end:
            end = intact.log_offset
        else:
            # Include the hole after this segment: the next known frame border is its end.
            end = next((s.start for s in log.segments if s.start > segment.start), flushed)
            end = max(end, segment.end)
        # Bytes above ``flushed`` may be a separate torn tail.
        end = flushed if offset < flushed < end else end
        says = list(_says(segment, offset, end))
    return BadRange(
        segment=segment_path(segment.start),
        log_offset=offset,
        length=end - offset,
        kind=kind,
        says=says,
    )


def _judged(log: CommitLog, seed: int, offset: int, flushed: int) -> RangeKind:
    try:
        judge(log, seed, offset, flushed)
    except StoreCorrupt:
        return RangeKind.DAMAGED
    except StoreUnusable:
        return RangeKind.VERSION_UNKNOWN
    return RangeKind.TORN


def _says(segment: Segment, offset: int, end: int) -> Iterator[str]:
    """Describe the frames of a bad range, as long as each head leads to the next."""
    told = 0
    while offset < end and told < SAYS_MAX:
        data = segment.file.read_at(offset - segment.start, min(end - offset, FRAME_BYTES_MAX))
        head = stated_head(data)
        if head is None:
            return
        try:
            records = decode_records(data[head.records_at : head.length], offset)
        except (StoreUnusable, UnicodeDecodeError):
            records = []
        for record in records:
            if not isinstance(record, NamedQueue | NamedOrigin):
                yield f"{offset}: {describe(record)}"
                told += 1
        offset += head.length


def describe(record: Record) -> str:
    """A record in a few words."""
    if isinstance(record, Prepared):
        count = len(record.placed.queues)
        return f"Prepared {record.transaction_id!r}, half {record.first}, messages {count}"
    text = repr(record)
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - a line
