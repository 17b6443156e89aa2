"""Scans the log from any offset, a limited number of bytes at a time.

A frame states its own log offset, and the store's seed goes into its checksum. So a scan finds the
next frame from any offset between two frames. It never reads past the durable end of the log.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from escrowmq.store.log.commit_log import Segment, block_at
from escrowmq.store.log.frames import HEAD_BYTES, MAGIC, decode_records, each_vouched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.store import Store
    from escrowmq.transaction.records import Record

SCANNED_BYTES_MAX = 1024 * 1024
#: Bytes that are searched for the next frame.
SOUGHT_BYTES_MAX = 256 * 1024
#: False frame starts that one search accepts; only a crafted message holds this many.
CANDIDATES_MAX = 16
_PROBE_BYTES = 16 * 1024

#: The field in which a frame states its own log offset.
_STATED = Struct("<16xQ")


class Passed(msgspec.Struct, frozen=True):
    """A frame that the scan passed, with its records if they were requested."""

    log_offset: int
    end: int
    stored_at_ms: int
    records: list[Record]


class LogScan:
    """Scanner of one store's log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def frames(
        self, log_offset: int, bytes_max: int = SCANNED_BYTES_MAX, *, with_messages: bool = False
    ) -> Iterator[Passed]:
        """Yield frames, beginning with the first one at or after this offset.

        The last item is empty: its offset says how far the scan came.
        """
        at = self.next_frame(log_offset)
        stop = min(max(log_offset, self._store.log.start) + bytes_max, self._store.durable_end)
        while at < stop:
            for vouched in each_vouched(self.block(at, stop - at), 0, at, self._store.seed):
                place, length, records_at, stored_at_ms, _, tail = vouched
                # A frame with messages holds no decision.
                is_passed_over = records_at > HEAD_BYTES and not with_messages
                records = [] if is_passed_over else decode_records(tail, place)
                yield Passed(place, place + length, stored_at_ms, records)
                at = place + length
            if at < stop and self.frame_end(at) is None:
                # The frame was damaged after it was written. Continue at the next readable one.
                at = self.next_frame(at + 1)
        yield Passed(at, at, 0, [])

    def frame_end(self, log_offset: int) -> int | None:
        """Return the end of the frame that starts exactly here; None if none does."""
        block = self.block(log_offset, 1)
        vouched = next(each_vouched(block, 0, log_offset, self._store.seed), None)
        return None if vouched is None else log_offset + vouched[1]

    def block(self, log_offset: int, size: int) -> memoryview:
        """Return about ``size`` durable bytes of one segment; a frame at their start is whole."""
        segment = self.segment_of(log_offset)
        end = min(segment.end, self._store.durable_end)
        return block_at(segment, log_offset, end, max(min(size, end - log_offset), HEAD_BYTES))

    def segment_of(self, log_offset: int) -> Segment:
        """Return the segment that holds this offset."""
        return next(s for s in reversed(self._store.log.segments) if s.start <= log_offset)

    def next_frame(self, log_offset: int, bytes_max: int = SOUGHT_BYTES_MAX) -> int:
        """Return the start of the first frame at or after this offset, or how far the search came.

        The result never passes a frame that was not examined, nor the durable end of the log.
        """
        store = self._store
        log_offset = max(log_offset, store.log.start)
        if log_offset >= store.durable_end:
            return store.durable_end
        segment = self.segment_of(log_offset)
        end = min(segment.end, store.durable_end)
        data = segment.file.read_at(log_offset - segment.start, min(bytes_max, end - log_offset))
        at = data.find(MAGIC)
        candidates = 0
        while 0 <= at <= len(data) - _STATED.size:
            if _STATED.unpack_from(data, at)[0] == log_offset + at:
                if self.frame_end(log_offset + at) is not None:
                    return log_offset + at
                candidates += 1
                if candidates == CANDIDATES_MAX:
                    return log_offset + at + 1
            at = data.find(MAGIC, at + 1)
        if log_offset + len(data) == end:
            return end
        # The last bytes may be the start of a frame's head.
        return log_offset + len(data) - HEAD_BYTES

    def offset_at(self, stored_at_ms: int) -> int:
        """Return the offset of the first frame stored at or after this time.

        The result is lower if the scan reaches its byte limit before it finds that frame.
        """
        store = self._store
        low, high = store.log.start, store.durable_end
        for segment in store.log.segments:
            # Store times never go back: everything before a segment that starts earlier is earlier.
            if segment.first_at_ms and segment.first_at_ms < stored_at_ms:
                low = segment.start
            else:
                high = min(high, max(segment.start, low))
                break
        while high - low > _PROBE_BYTES:
            middle = (low + high) // 2
            found = next(self.frames(middle, _PROBE_BYTES))
            is_frame = found.log_offset < min(found.end, high)
            if is_frame and found.stored_at_ms < stored_at_ms:
                low = found.end
            else:
                high = middle
        # The last item says how far the scan came.
        return next(
            frame.log_offset
            for frame in self.frames(low)
            if frame.stored_at_ms >= stored_at_ms or frame.end == frame.log_offset
        )
