"""Tells a torn tail of the log, which a crash leaves, from damage.

A bad frame at or above the highest offset that any intact frame knows to be flushed is a torn
tail: nothing from there on was ever acknowledged, so it is cut. A bad frame below it is damage:
acknowledged bytes are gone, and the store refuses to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.disk import write_whole
from escrowmq.store.log.commit_log import DIRECTORY, TEMPORARY, CommitLog, Segment, segment_path
from escrowmq.store.log.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    MAGIC,
    VERSION,
    read_frame,
    stated_head,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.log.frames import Frame

_BLOCK_BYTES = 4 * 1024 * 1024


def open_segments(disk: Disk, log: CommitLog, log_start: int) -> None:
    """Open the segment files, and finish what a crash interrupted."""
    starts = []
    for name in disk.list(DIRECTORY):
        if name.endswith(TEMPORARY):
            disk.remove(f"{DIRECTORY}/{name}")
        elif not (name.isdecimal() and len(name) == len(f"{0:020d}")):
            raise StoreUnusable("store_foreign", "move this file away", path=f"{DIRECTORY}/{name}")
        else:
            starts.append(int(name))
    for at, start in enumerate(starts):
        if at + 1 < len(starts) and starts[at + 1] <= log_start:
            # Retention was deleting this segment when the crash came.
            disk.remove(segment_path(start))
            continue
        file = disk.open(segment_path(start))
        segment = Segment(start, file, file.size())
        if log.segments and log.segments[-1].end > segment.end:
            # The tail was rewritten into the previous segment, which covers this one. Cutting that
            # segment here would lose what follows this one, if the crash undid only some removals.
            file.close()
            disk.remove(segment_path(start))
            continue
        if log.segments and log.segments[-1].end > start:
            # The tail was rewritten into this segment, so cut its old bytes off the previous one.
            _cut(log.segments[-1], start)
        log.segments.append(segment)
    disk.flush_directory(DIRECTORY)


def _cut(segment: Segment, log_offset: int) -> None:
    segment.file.truncate(log_offset - segment.start)
    segment.file.flush()
    segment.size = log_offset - segment.start


def refuse_gaps(log: CommitLog, from_offset: int, log_end: int) -> None:
    """Raise if the log ends before its checkpoint or has a hole: then it is damaged."""
    offset = log.segments[0].start if log.segments else 0
    if offset > from_offset:
        raise StoreCorrupt(
            "log_segment_missing",
            "restore it from a backup",
            segment=segment_path(from_offset),
            log_offset=from_offset,
        )
    for segment in log.segments:
        if segment.start != offset and offset < log_end:
            raise StoreCorrupt(
                "log_segment_missing",
                "restore it from a backup",
                segment=segment_path(offset),
                log_offset=offset,
            )
        offset = segment.end
    if offset < log_end:
        raise StoreCorrupt(
            "log_too_short",
            "restore it from a backup",
            segment=segment_path(log.segments[-1].start if log.segments else 0),
            log_offset=offset,
            expected=log_end,
        )


def judge(log: CommitLog, seed: int, bad_offset: int, flushed: int) -> None:
    """Raise unless everything from this offset on may be cut."""
    segment = next((s for s in log.segments if s.start <= bad_offset < s.end), None)
    known = (frame.flushed for frame in later_frames(log, seed, bad_offset))
    later = next((offset for offset in known if offset > bad_offset), 0)
    if not later and segment is not None:
        # If a later frame knows this one as flushed, a higher version number is damage.
        _refuse_newer(segment, bad_offset)
    if max(flushed, later) > bad_offset:
        raise StoreCorrupt(
            "log_damaged",
            "`escrowmq store check` tells how much, `escrowmq store repair` cuts it out",
            segment=segment_path(segment.start if segment else bad_offset),
            log_offset=bad_offset,
            flushed=max(flushed, later),
        )


def _refuse_newer(segment: Segment, log_offset: int) -> None:
    head = stated_head(segment.file.read_at(log_offset - segment.start, HEAD_BYTES))
    if head is not None and head.version > VERSION:
        raise StoreUnusable(
            "frame_version_unknown",
            "a newer EscrowMQ wrote this log; use that one",
            version=head.version,
            known=VERSION,
            segment=segment_path(segment.start),
            log_offset=log_offset,
        )


def later_frames(log: CommitLog, seed: int, bad_offset: int) -> Iterator[Frame]:
    """Yield intact frames after this offset, wherever they start."""
    for segment in log.segments:
        offset = max(segment.start, bad_offset)
        while offset < segment.end:
            block = segment.file.read_at(offset - segment.start, _BLOCK_BYTES + FRAME_BYTES_MAX)
            at = block.find(MAGIC)
            while 0 <= at < _BLOCK_BYTES:
                frame = read_frame(block, at, offset + at, seed)
                if frame is not None:
                    yield frame
                at = block.find(MAGIC, at + 1)
            offset += _BLOCK_BYTES


def cut_tail(disk: Disk, log: CommitLog, log_offset: int) -> int:
    """Cut everything from this offset on; return the number of bytes."""
    cut = 0
    while len(log.segments) > 1 and log.segments[-1].start >= log_offset:
        segment = log.segments.pop()
        cut += segment.size
        segment.file.close()
        disk.remove(segment_path(segment.start))
        # Remove one by one from the end, so that a crash leaves no hole.
        disk.flush_directory(DIRECTORY)
    if log.segments[-1].end > log_offset:
        cut += log.segments[-1].end - log_offset
        _cut(log.segments[-1], log_offset)
    return cut


def rewrite_tail(disk: Disk, log: CommitLog, flushed: int, end: int) -> None:
    """Write what may never have reached the disk into a new segment, and flush it.

    After a failed flush, the kernel may show pages that it never wrote and never will: only
    writing them again makes them durable.
    """
    pieces = []
    for segment in log.segments:
        start, stop = max(flushed, segment.start), min(end, segment.end)
        if start < stop:
            pieces.append(segment.file.read_at(start - segment.start, stop - start))
    path = segment_path(flushed)
    write_whole(disk, path + TEMPORARY, b"".join(pieces))
    disk.rename(path + TEMPORARY, path)
    disk.flush_directory(DIRECTORY)
    while log.segments and log.segments[-1].start >= flushed:
        segment = log.segments.pop()
        segment.file.close()
        if segment.start > flushed:
            disk.remove(segment_path(segment.start))
    if log.segments:
        _cut(log.segments[-1], flushed)
    disk.flush_directory(DIRECTORY)
    log.segments.append(Segment(flushed, disk.open(path), end - flushed))
