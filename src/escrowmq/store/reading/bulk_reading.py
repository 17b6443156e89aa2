"""Bulk reads of a queue's visible messages, as the raw bytes in the log.

No Python object is built per message: entries are numpy rows, and neighbors in the log are read
together, including small gaps between them. The reader returns the messages' checksums with the
bytes; ``pipeline/source/decoding.py`` compares them when it decodes the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from escrowmq.store.log.blocks import MARGIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.log.blocks import LogBlocks
    from escrowmq.store.log.commit_log import CommitLog
    from escrowmq.store.queue.consume_queue import ConsumeQueue
    from escrowmq.store.store import Store

#: The most entries that one filtered read examines.
FILTERED_MAX = 65_536
#: Size of a small message, to estimate how many entries fit into a read.
SMALL_BYTES = 256
#: A gap up to this size is read and discarded, because a second read costs more.
GAP_BYTES_MAX = 8_192
#: Approximate size of one read, small enough to stay in the CPU cache.
BLOCK_BYTES = 256 * 1024

Offsets = npt.NDArray[np.int64]


class StoredBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as they were written, concatenated."""

    queue_offsets: Offsets
    #: Their entries in the queue.
    entries: Rows
    #: Their stored bytes, in queue order.
    records: memoryview
    #: Queue offset where the next read continues.
    next_offset: int


def read_stored(
    store: Store,
    queue: ConsumeQueue,
    start: int,
    end: int,
    *,
    count_max: int,
    bytes_max: int,
    codes: Collection[int] | None = None,
    blocks: LogBlocks | None = None,
) -> StoredBytes:
    """Return visible messages at the queue offsets ``[start, end)``; at least one, however large.

    With ``codes``, return only messages with these tag codes. Messages that repair took out are
    skipped. Pass ``blocks`` to share reads between several queues.
    """
    # Few messages are smaller than SMALL_BYTES; entries that do not fit are read in vain.
    looked = min(count_max, bytes_max // SMALL_BYTES + 1) if codes is None else FILTERED_MAX
    rows = queue.rows(start, min(looked, max(end - start, 0)))
    is_wanted = (rows["size"] > 0) & ~_are_lost(store, rows["log_offset"])
    if codes is not None:
        is_wanted &= np.isin(rows["tags"], list(codes))
    wanted = np.flatnonzero(is_wanted)
    totals = np.cumsum(rows["size"][wanted], dtype=np.int64)
    # Return at least one message, or the reader would never get past a large one.
    fitting = max(int(np.searchsorted(totals, bytes_max, side="right")), 1)
    taken = wanted[: min(fitting, count_max)]
    next_offset = start + len(rows)
    if len(taken) < len(wanted):
        next_offset = start + int(wanted[len(taken)])
    entries = rows[taken]
    records = memoryview(b"")
    if len(taken):
        offsets, sizes = entries["log_offset"], entries["size"].astype(np.int64)
        if blocks is not None and _are_scattered(offsets, sizes):
            records = blocks.gather(offsets, sizes)
        else:
            records = memoryview(bytearray(int(totals[len(taken) - 1])))
            _copy(store.log, offsets, sizes, records)
    return StoredBytes(
        queue_offsets=taken + start, entries=entries, records=records, next_offset=next_offset
    )


def _are_lost(store: Store, log_offsets: Offsets) -> npt.NDArray[np.bool_]:
    """Return which messages are lost, by the rule that ``Reader`` applies to a single one."""
    are_lost = np.zeros(len(log_offsets), dtype=np.bool_)
    if store.lost.ranges:
        are_lost |= log_offsets < store.log.start
    for start, end in store.lost.ranges:
        are_lost |= (log_offsets >= start) & (log_offsets < end)
    return are_lost


def _are_scattered(log_offsets: Offsets, sizes: Offsets) -> bool:
    """Whether all messages are small and most are separated by small gaps."""
    if int(sizes.max()) > MARGIN_BYTES:
        return False
    neighbours = int(np.count_nonzero(log_offsets[1:] == log_offsets[:-1] + sizes[:-1]))
    span = int(log_offsets.max()) - int(log_offsets.min())
    return 2 * neighbours < len(sizes) and span <= len(sizes) * GAP_BYTES_MAX


def _copy(log: CommitLog, log_offsets: Offsets, sizes: Offsets, into: memoryview) -> None:
    """Copy the bytes of these records into ``into``, in this order and without gaps."""
    places = np.cumsum(sizes) - sizes
    # Transactions become visible in the order of their decisions, which is not log order.
    order = np.argsort(log_offsets, kind="stable")
    starts, places, sizes = log_offsets[order], places[order], sizes[order]
    ends = starts + sizes
    #: Whether a record does not directly follow the one before, in the log or in ``into``.
    is_apart = (starts[1:] != ends[:-1]) | (places[1:] != places[:-1] + sizes[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(is_apart) + 1))
    lasts = np.concatenate((firsts[1:], [len(starts)])) - 1
    runs = zip(starts[firsts].tolist(), ends[lasts].tolist(), places[firsts].tolist(), strict=True)
    block, block_start, block_end = memoryview(b""), 0, 0
    borders = iter(_block_ends(log, starts[firsts], ends[lasts]))
    for start, end, place in runs:
        if end > block_end:
            block_start, block_end = start, next(borders)
            block = memoryview(log.read(block_start, block_end - block_start))
        into[place : place + end - start] = block[start - block_start : end - block_start]


def _block_ends(log: CommitLog, starts: Offsets, ends: Offsets) -> list[int]:
    """Return where each read ends: before a large gap, a segment border or a block border."""
    segments = np.searchsorted([segment.start for segment in log.segments], starts, side="right")
    is_last = (
        (starts[1:] - ends[:-1] > GAP_BYTES_MAX)
        | (segments[1:] != segments[:-1])
        | (starts[1:] // BLOCK_BYTES != starts[:-1] // BLOCK_BYTES)
    )
    found: list[int] = ends[np.append(is_last, True)].tolist()
    return found
