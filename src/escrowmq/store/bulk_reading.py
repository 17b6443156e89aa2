"""Visible messages of a queue as the bytes in the log, by the thousand.

Nothing is made or looked at per message: entries are rows of numpy, and neighbours in the log are
read together, with what stands between them if that is little.  The messages' checksums go out
beside them and are compared by whoever takes the bytes apart (``pipeline/source/decoding.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from escrowmq.store.log_blocks import MARGIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.store.commit_log import CommitLog
    from escrowmq.store.consume_queue import ConsumeQueue
    from escrowmq.store.log_blocks import LogBlocks
    from escrowmq.store.rows import Rows
    from escrowmq.store.store import Store

#: Entries that one filtered read looks at.
FILTERED_MAX = 65_536
#: A small message.
SMALL_BYTES = 256
#: Bytes that are read for nothing rather than in a further read.
GAP_BYTES_MAX = 8_192
#: What is read at once, about: little enough to stay in the processor's cache.
BLOCK_BYTES = 256 * 1024

Offsets = npt.NDArray[np.int64]


class StoredBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as they were written, one after the other."""

    queue_offsets: Offsets
    #: Their entries in the queue.
    entries: Rows
    #: Their records, in the order of the queue.
    records: memoryview
    #: Where to read on.
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
    """Visible messages at the queue offsets ``[start, end)``; at least one, however large.

    With ``codes``, only those with such tags.  What repair took out is passed over.  ``blocks``
    are for who reads several queues.
    """
    # Few are smaller, and entries that do not fit are looked at for nothing.
    looked = min(count_max, bytes_max // SMALL_BYTES + 1) if codes is None else FILTERED_MAX
    rows = queue.rows(start, min(looked, max(end - start, 0)))
    is_wanted = (rows["size"] > 0) & ~_are_lost(store, rows["log_offset"])
    if codes is not None:
        is_wanted &= np.isin(rows["tags"], list(codes))
    wanted = np.flatnonzero(is_wanted)
    totals = np.cumsum(rows["size"][wanted], dtype=np.int64)
    # At least one, however large: a reader must get past it.
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
    """As ``Reader`` says it of one."""
    are_lost = np.zeros(len(log_offsets), dtype=np.bool_)
    if store.lost.ranges:
        are_lost |= log_offsets < store.log.start
    for start, end in store.lost.ranges:
        are_lost |= (log_offsets >= start) & (log_offsets < end)
    return are_lost


def _are_scattered(log_offsets: Offsets, sizes: Offsets) -> bool:
    """Whether they are small, and little stands between them, but something."""
    if int(sizes.max()) > MARGIN_BYTES:
        return False
    neighbours = int(np.count_nonzero(log_offsets[1:] == log_offsets[:-1] + sizes[:-1]))
    span = int(log_offsets.max()) - int(log_offsets.min())
    return 2 * neighbours < len(sizes) and span <= len(sizes) * GAP_BYTES_MAX


def _copy(log: CommitLog, log_offsets: Offsets, sizes: Offsets, into: memoryview) -> None:
    """The bytes of these records, in this order, one after the other."""
    places = np.cumsum(sizes) - sizes
    # Transactions are visible in the order of their decisions, which is not that of the log.
    order = np.argsort(log_offsets, kind="stable")
    starts, places, sizes = log_offsets[order], places[order], sizes[order]
    ends = starts + sizes
    #: Where a record is not the next one's neighbour, here and there.
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
    """Where to stop reading before a gap, or a border of segments, or when it is enough."""
    segments = np.searchsorted([segment.start for segment in log.segments], starts, side="right")
    is_last = (
        (starts[1:] - ends[:-1] > GAP_BYTES_MAX)
        | (segments[1:] != segments[:-1])
        | (starts[1:] // BLOCK_BYTES != starts[:-1] // BLOCK_BYTES)
    )
    found: list[int] = ends[np.append(is_last, True)].tolist()
    return found
