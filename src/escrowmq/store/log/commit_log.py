"""The commit log: frames in segments, addressed by one running log offset.

A segment is a file named by the log offset of its first byte; it ends where the next one starts.
Frames never cross a segment border. Appended frames are first gathered in memory, then written,
then flushed; ``end``, ``written`` and ``flushed`` are the log offsets that each step has reached.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log.frames import read_frame, stated_head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.store.disk.disk import Bytes, Disk, File
    from escrowmq.store.log.frames import Frame

DIRECTORY = "commitlog"
TEMPORARY = ".tmp"
BLOCK_BYTES = 1 * 1024 * 1024
_JOINED_BYTES_MAX = 16 * 1024


def segment_path(start: int) -> str:
    """Return the path of the segment that starts at this log offset."""
    return f"{DIRECTORY}/{start:020d}"


class Segment(msgspec.Struct):
    """One file of the log."""

    start: int
    file: File
    size: int
    #: Store time of its first frame; 0 until it has one.
    first_at_ms: int = 0

    @property
    def end(self) -> int:
        """The log offset after its last byte."""
        return self.start + self.size


class CommitLog:
    """All segments, oldest first."""

    def __init__(self, disk: Disk, segment_bytes_max: int) -> None:
        self._disk = disk
        self._segment_bytes_max = segment_bytes_max
        self.segments: list[Segment] = []
        self.end = 0
        self.written = 0
        self.flushed = 0
        #: Gathered frames: (log offset, bytes, whether it opens a new segment, store time).
        self._gathered: list[tuple[int, Bytes, bool, int]] = []
        self._tail_bytes = 0
        self._unflushed: dict[int, Segment] = {}

    @property
    def start(self) -> int:
        """The lowest log offset that can still be read."""
        if self.segments:
            return self.segments[0].start
        # The first batch of a new log has no segment until it is written.
        return self.written

    def begin_at(self, log_offset: int) -> None:
        """Continue the log at this offset, where its last segment ends."""
        self.end = self.written = self.flushed = log_offset
        self._tail_bytes = self.segments[-1].size if self.segments else 0

    def append(self, frame: Bytes, stored_at_ms: int) -> None:
        """Gather a frame; it must have been made for offset ``end``."""
        size = len(frame)
        opens = self._tail_bytes + size > self._segment_bytes_max and self._tail_bytes > 0
        opens = opens or not (self.segments or self._gathered)
        self._tail_bytes = size if opens else self._tail_bytes + size
        self._gathered.append((self.end, frame, opens, stored_at_ms))
        self.end += size

    def write(self) -> None:
        """Write everything gathered to the operating system."""
        gathered = self._gathered
        at = 0
        while at < len(gathered):
            start, _, opens, stored_at_ms = gathered[at]
            if opens:
                self._open_segment(start, stored_at_ms)
            run = at + 1
            # Join small frames into one write; copying a large frame costs more than it saves.
            is_small = len(gathered[at][1]) < _JOINED_BYTES_MAX
            while is_small and run < len(gathered) and not gathered[run][2]:
                is_small = len(gathered[run][1]) < _JOINED_BYTES_MAX
                run += is_small
            frames = [frame for _, frame, _, _ in gathered[at:run]]
            data = frames[0] if len(frames) == 1 else b"".join(frames)
            segment = self.segments[-1]
            segment.file.write_at(start - segment.start, data)
            segment.size += len(data)
            segment.first_at_ms = segment.first_at_ms or stored_at_ms
            self._unflushed[segment.start] = segment
            at = run
        self.written = self.end
        self._gathered = []

    def _open_segment(self, start: int, stored_at_ms: int) -> None:
        file = self._disk.open(segment_path(start), create=True)
        # Flush the file's name before any frame, or a crash could lose the file with its frames.
        self._disk.flush_directory(DIRECTORY)
        self.segments.append(Segment(start, file, 0, stored_at_ms))

    def flush(self) -> None:
        """Return once everything written is on the disk."""
        written = self.written
        for segment in self._unflushed.values():
            segment.file.flush()
        self._unflushed = {}
        self.flushed = written

    def unflushed(self) -> list[Segment]:
        """Return segments with unflushed writes, for a caller that flushes them itself."""
        return list(self._unflushed.values())

    def note_flushed(self, log_offset: int) -> None:
        """Note that the caller has flushed everything below this log offset."""
        self.flushed = max(self.flushed, log_offset)
        more = {start: one for start, one in self._unflushed.items() if one.end > log_offset}
        self._unflushed = more

    def read(self, log_offset: int, size: int) -> bytes:
        """Return bytes of the log, including frames that are only gathered so far."""
        if log_offset >= self.written:
            for start, frame, _, _ in reversed(self._gathered):
                if start <= log_offset:
                    return bytes(frame[log_offset - start : log_offset - start + size])
        segment = self._segment_of(log_offset)
        data = segment.file.read_at(log_offset - segment.start, size)
        if len(data) < size:
            raise StoreCorrupt(
                "log_too_short",
                "run `escrowmq store check`",
                segment=segment_path(segment.start),
                log_offset=log_offset,
            )
        return data

    def peek(self, log_offset: int, size: int) -> bytes:
        """Return written bytes at any offset; fewer, or none, if the log does not have them."""
        if not self.start <= log_offset < self.written:
            return b""
        segment = self._segment_of(log_offset)
        return segment.file.read_at(log_offset - segment.start, max(size, 0))

    def _segment_of(self, log_offset: int) -> Segment:
        # Nearly all reads are in the newest segment.
        if self.segments and self.segments[-1].start <= log_offset < self.segments[-1].end:
            return self.segments[-1]
        at = bisect_right(self.segments, log_offset, key=lambda segment: segment.start) - 1
        if at < 0 or log_offset >= self.segments[at].end:
            raise StoreCorrupt(
                "log_offset_unknown", "nothing is stored there", log_offset=log_offset
            )
        return self.segments[at]

    def forget_below(self, log_offset: int) -> list[Segment]:
        """Drop and return the segments that end at or before this offset, oldest first.

        The newest segment stays. ``remove_segments`` deletes the files.
        """
        forgotten = []
        while len(self.segments) > 1 and self.segments[0].end <= log_offset:
            segment = self.segments.pop(0)
            self._unflushed.pop(segment.start, None)
            forgotten.append(segment)
        return forgotten

    def close(self) -> None:
        """Close all segment files."""
        for segment in self.segments:
            segment.file.close()
        self.segments = []


def remove_segments(disk: Disk, segments: Sequence[Segment]) -> None:
    """Delete the files of segments that the log dropped, oldest first. Safe in any thread."""
    for segment in segments:
        segment.file.close()
        disk.remove(segment_path(segment.start))
    if segments:
        disk.flush_directory(DIRECTORY)


def block_at(segment: Segment, log_offset: int, end: int, size: int = BLOCK_BYTES) -> memoryview:
    """Return about ``size`` bytes from a frame on, and the whole frame if it ends by ``end``."""
    at = log_offset - segment.start
    block = segment.file.read_at(at, min(size, end - log_offset))
    head = stated_head(block)
    if head is not None and len(block) < head.length <= end - log_offset:
        block = segment.file.read_at(at, head.length)
    return memoryview(block)


def read_frames(segment: Segment, seed: int, *, from_offset: int, end: int) -> Iterator[Frame]:
    """Yield the intact frames of a segment.

    It stops at the first bad frame; the caller sees that it did not reach ``end``.
    """
    offset = before = from_offset
    while offset < end:
        block = block_at(segment, offset, end)
        while (frame := read_frame(block, offset - before, offset, seed)) is not None:
            yield frame
            offset = frame.end
        if offset == before:
            return
        before = offset
