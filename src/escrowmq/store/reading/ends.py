"""The end of a queue when the log ended at a given offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.store.log.commit_log import read_frames

if TYPE_CHECKING:
    from escrowmq.store.queue.consume_queue import ConsumeQueue
    from escrowmq.store.reading.reader import StoreReader
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half


def end_at(store: Store, reader: StoreReader, queue: ConsumeQueue, log_offset: int) -> int:
    """Return the queue's end before the frame at this log offset; its start if that is deleted.

    Some messages may have become visible in the same millisecond as the frame. Among them, a half
    message counts as visible before the frame if an earlier frame decided it. A message that
    waited for its delay counts as visible after it.
    """
    if log_offset >= store.log.end:
        return queue.end
    at_ms = _time_at(store, log_offset)
    if at_ms is None:
        return queue.start
    end = queue.offset_at(at_ms)
    while end < queue.end:
        entry = queue.entries(end, 1)[0]
        if entry.visible_at_ms != at_ms or entry.log_offset >= log_offset:
            break
        located = reader.at(entry.log_offset)
        if located is None or not _was_visible(store, located.half, at_ms, log_offset):
            break
        end += 1
    return end


def _was_visible(store: Store, half: Half | None, at_ms: int, log_offset: int) -> bool:
    """Whether a message stored before this log offset also became visible before it."""
    if half is None:
        return True
    _, decided_at_ms = store.table.decided_by(half)
    return store.table.op_offset(half) < log_offset and decided_at_ms == at_ms


def _time_at(store: Store, log_offset: int) -> int | None:
    """Return the store time of the frame here, or None if retention has deleted it."""
    for epoch in store.core.lineage.without_repairs().epochs:
        if epoch.log_offset == log_offset and epoch.at_ms:
            return epoch.at_ms
    if log_offset < store.log.start:
        return None
    for segment in store.log.segments:
        if segment.start <= log_offset < segment.end:
            frames = read_frames(segment, store.seed, from_offset=log_offset, end=segment.end)
            frame = next(frames, None)
            if frame is not None:
                return frame.stored_at_ms
    raise RequestRefused("no_frame_here", "name where a frame begins", log_offset=log_offset)
