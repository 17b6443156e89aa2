"""Visible messages of a queue as the bytes in the log, by the thousand.

Nothing is made or looked at per message: entries are rows of numpy, and neighbours in the log are
read together, with what stands between them if that is little.  The messages' checksums go out
beside them and are compared by whoever takes the bytes apart (``pipeline/decoding.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from escrowmq.store.commit_log import CommitLog
    from escrowmq.store.consume_queue import ConsumeQueue
    from escrowmq.store.rows import Rows
    from escrowmq.store.store import Store

#: Entries that one filtered read looks at.
FILTERED_MAX = 65_536
#: Bytes that are read for nothing rather than in a further read.
GAP_BYTES_MAX = 4_096

Offsets = npt.NDArray[np.int64]


class StoredBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as they were written, one after the other."""

    queue_offsets: Offsets
    #: Their entries in the queue.
    entries: Rows
    #: Joined they are the records, in the order of the queue.
    pieces: list[memoryview]
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
) -> StoredBytes:
    """Visible messages at the queue offsets ``[start, end)``; at least one, however large.

    With ``codes``, only those with such tags.  What repair took out is passed over.
    """
    looked = count_max if codes is None else FILTERED_MAX
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
    return StoredBytes(
        queue_offsets=taken + start,
        entries=entries,
        pieces=list(_pieces(store.log, entries["log_offset"], entries["size"])),
        next_offset=next_offset,
    )


def _are_lost(store: Store, log_offsets: Offsets) -> npt.NDArray[np.bool_]:
    """As ``Reader`` says it of one."""
    are_lost = np.zeros(len(log_offsets), dtype=np.bool_)
    if store.lost.ranges:
        are_lost |= log_offsets < store.log.start
    for start, end in store.lost.ranges:
        are_lost |= (log_offsets >= start) & (log_offsets < end)
    return are_lost


def _pieces(
    log: CommitLog, log_offsets: Offsets, sizes: npt.NDArray[np.uint32]
) -> Iterator[memoryview]:
    """The bytes of these records in this order; neighbours are one piece."""
    if not len(log_offsets):
        return
    blocks, block_of, places = _read_blocks(log, log_offsets, sizes.astype(np.int64))
    ends = places + sizes
    is_next = (block_of[1:] == block_of[:-1]) & (places[1:] == ends[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(~is_next) + 1))
    lasts = np.concatenate((firsts[1:], [len(places)])) - 1
    for block, start, end in zip(
        block_of[firsts].tolist(), places[firsts].tolist(), ends[lasts].tolist(), strict=True
    ):
        yield blocks[block][start:end]


def _read_blocks(
    log: CommitLog, log_offsets: Offsets, sizes: Offsets
) -> tuple[list[memoryview], Offsets, Offsets]:
    """Blocks of the log that hold these records; for each record its block, and where it is there.

    Transactions are visible in the order of their decisions, which is not that of the log.
    """
    order = np.argsort(log_offsets, kind="stable")
    starts = log_offsets[order]
    ends = starts + sizes[order]
    segments = np.searchsorted([segment.start for segment in log.segments], starts, side="right")
    opens = np.concatenate(
        ([True], (starts[1:] - ends[:-1] > GAP_BYTES_MAX) | (segments[1:] != segments[:-1]))
    )
    firsts = np.flatnonzero(opens)
    lasts = np.concatenate((firsts[1:], [len(starts)])) - 1
    block_starts = starts[firsts]
    blocks = [
        memoryview(log.read(start, size))
        for start, size in zip(
            block_starts.tolist(), (ends[lasts] - block_starts).tolist(), strict=True
        )
    ]
    block_of = np.empty(len(starts), dtype=np.int64)
    block_of[order] = np.cumsum(opens) - 1
    return blocks, block_of, log_offsets - block_starts[block_of]
