"""Reading records out of the log in passing: from any offset on, and never much at a time.

Frames say where they stand and are sealed by the store, so the next one can be found from anywhere
between two.  Nothing at or above what is settled is looked at.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from escrowmq.store.commit_log import Segment, block_at
from escrowmq.store.frames import HEAD_BYTES, MAGIC, decode_records, each_vouched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.store import Store
    from escrowmq.transaction.records import Record

SCANNED_BYTES_MAX = 1024 * 1024
#: Bytes in which the next frame is looked for.
SOUGHT_BYTES_MAX = 256 * 1024
#: Places that say they are a frame and are none: only somebody who means it writes so many.
CANDIDATES_MAX = 16
_PROBE_BYTES = 16 * 1024

#: Where a frame says at which log offset it stands.
_STATED = Struct("<16xQ")


class Passed(msgspec.Struct, frozen=True):
    """A frame that was passed, and its records if they were asked for."""

    log_offset: int
    end: int
    stored_at_ms: int
    records: list[Record]


class LogScan:
    """Belongs to one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def frames(
        self, log_offset: int, bytes_max: int = SCANNED_BYTES_MAX, *, with_messages: bool = False
    ) -> Iterator[Passed]:
        """Frames from the first one at or after this offset on.

        The last one yielded may be without records, and says how far this has come.
        """
        at = self.next_frame(log_offset)
        stop = min(max(log_offset, self._store.log.start) + bytes_max, self._store.settled)
        while at < stop:
            for vouched in each_vouched(self.block(at, stop - at), 0, at, self._store.seed):
                place, length, records_at, stored_at_ms, _, tail = vouched
                # What brings messages decides nothing.
                is_passed_over = records_at > HEAD_BYTES and not with_messages
                records = [] if is_passed_over else decode_records(tail, place)
                yield Passed(place, place + length, stored_at_ms, records)
                at = place + length
            if at < stop and self.frame_end(at) is None:
                # Damaged since it was written: what can be read goes on after it.
                at = self.next_frame(at + 1)
        yield Passed(at, at, 0, [])

    def frame_end(self, log_offset: int) -> int | None:
        """Where the frame ends that starts exactly here; None if none does."""
        block = self.block(log_offset, 1)
        vouched = next(each_vouched(block, 0, log_offset, self._store.seed), None)
        return None if vouched is None else log_offset + vouched[1]

    def block(self, log_offset: int, size: int) -> memoryview:
        """About so many settled bytes of one segment; a frame that starts them is whole."""
        segment = self.segment_of(log_offset)
        end = min(segment.end, self._store.settled)
        return block_at(segment, log_offset, end, max(min(size, end - log_offset), HEAD_BYTES))

    def segment_of(self, log_offset: int) -> Segment:
        """Where this offset is."""
        return next(s for s in reversed(self._store.log.segments) if s.start <= log_offset)

    def next_frame(self, log_offset: int, bytes_max: int = SOUGHT_BYTES_MAX) -> int:
        """Where the first frame at or after this offset starts; if none is near, how far is known.

        That is never beyond a frame which was not looked at, and at most what is settled.
        """
        store = self._store
        log_offset = max(log_offset, store.log.start)
        if log_offset >= store.settled:
            return store.settled
        segment = self.segment_of(log_offset)
        end = min(segment.end, store.settled)
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
        # The last bytes may be the start of a head.
        return log_offset + len(data) - HEAD_BYTES

    def offset_at(self, stored_at_ms: int) -> int:
        """The first frame stored at or after this time, or one before it if that is hard to say."""
        store = self._store
        low, high = store.log.start, store.settled
        for segment in store.log.segments:
            # Times never go back, so up to a segment that starts earlier all is earlier.
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
        # The last one says how far this has come.
        return next(
            frame.log_offset
            for frame in self.frames(low)
            if frame.stored_at_ms >= stored_at_ms or frame.end == frame.log_offset
        )
