"""Transaction ids of many requests: they stand in the log only, in the records of each frame.

Only heads and records are checked: whoever reads a message checks that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from escrowmq.store import lone
from escrowmq.store.frames import (
    CHECKSUM_AT,
    FRAME_HEAD,
    HEAD_BYTES,
    are_ours,
    decode_records,
    is_vouched,
    stated_head,
)
from escrowmq.store.rows import Rows, windows
from escrowmq.transaction.records import Moved, Prepared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.store import Store

UNKNOWN = -1
"""The head of a request of which the log has nothing any more."""

READ_BYTES = 512 * 1024
"""Frames that are near each other are read together, so much at a time."""

_GAP_BYTES = 16 * 1024
#: Of the last frame of a read: enough for its message, if it is no large one.
_LAST_BYTES = 4 * 1024


def identities(store: Store, rows: Rows, locations: Rows) -> tuple[list[bytes], Rows]:
    """Transaction id and head of each request, given by its first row and where its bytes are.

    An id is UTF-8; empty, and its head UNKNOWN, where retention has deleted the frame or damage has
    taken it.
    """
    ids = [b""] * len(rows)
    heads = np.full(len(rows), UNKNOWN, dtype=np.int64)
    frames_at = locations - HEAD_BYTES
    # Nearly always in order already: only what was carried forward is not.
    order = np.argsort(frames_at, kind="stable")
    done = int(np.searchsorted(frames_at[order], store.log.start))
    while done < len(order):
        run = _run(frames_at[order[done:]], READ_BYTES)
        places = order[done : done + run]
        start = int(frames_at[places[0]])
        size = int(frames_at[places[-1]]) - start + _LAST_BYTES
        block = _Block(store, store.log.peek(start, size), start)
        is_read = block.read(rows[places], frames_at[places] - start)
        for at in np.flatnonzero(~is_read).tolist():
            place = int(places[at])
            ids[place], heads[place] = _alone(store, int(rows[place]), int(frames_at[place]))
        read = places[is_read]
        heads[read] = rows[read]
        for place, transaction_id in zip(read.tolist(), block.ids, strict=True):
            ids[place] = transaction_id
        done += run
    return ids, heads


def _run(frames_at: Rows, bytes_max: int) -> int:
    """How many of these frames, from the first on, are near each other."""
    count = int(np.searchsorted(frames_at, frames_at[0] + bytes_max))
    gaps = np.flatnonzero(np.diff(frames_at[:count]) > _GAP_BYTES)
    return int(gaps[0]) + 1 if len(gaps) else count


class _Block:
    """Bytes of the log, and the ids that were found in them."""

    def __init__(self, store: Store, data: bytes, start: int) -> None:
        self._seed = store.seed
        self._data = data
        self._start = start
        self.ids: list[bytes] = []

    def read(self, rows: Rows, places: Rows) -> Rows:
        """Which of the frames at these places hold this one half message; their ids are kept."""
        data = self._data
        is_read = places + HEAD_BYTES <= len(data)
        heads = windows(data, FRAME_HEAD, places[is_read])
        starts = places[is_read]
        tails = starts + heads["records_at"]
        ends = starts + heads["length"]
        is_whole = are_ours(heads, starts + self._start)
        is_whole &= (heads["records_at"] >= HEAD_BYTES) & (tails + lone.HALF_BYTES <= ends)
        is_whole &= ends <= len(data)
        is_read[is_read] = is_whole
        starts, tails, ends = starts[is_whole], tails[is_whole], ends[is_whole]
        records = windows(data, lone.HALF, tails)
        is_lone = (records["mark"] == lone.MARK) & (records["kind"] == lone.HALF_KIND)
        is_lone &= records["row"] == rows[is_read]
        is_lone &= self._checksums(starts, tails, ends) == heads["checksum"][is_whole]
        is_read[is_read] = is_lone
        ids_at = tails + lone.HALF_BYTES + 4 * records["key_count"].astype(np.int64)
        pairs = zip(ids_at[is_lone].tolist(), ends[is_lone].tolist(), strict=True)
        self.ids = [data[at:end] for at, end in pairs]
        return is_read

    def _checksums(self, starts: Rows, tails: Rows, ends: Rows) -> Rows:
        data, seed = self._data, self._seed
        places = zip(starts.tolist(), tails.tolist(), ends.tolist(), strict=True)
        return np.array(
            [
                crc32(data[tail:end], crc32(data[start : start + CHECKSUM_AT], seed))
                for start, tail, end in places
            ],
            dtype=np.uint32,
        )


def _alone(store: Store, row: int, frame_at: int) -> tuple[bytes, int]:
    """The same of one request, whose frame may be anything."""
    if store.lost.hold(frame_at):
        return b"", UNKNOWN
    head = store.log.peek(frame_at, HEAD_BYTES)
    stated = stated_head(head)
    if stated is not None:
        # Its messages may be megabytes, and are not needed.
        size = stated.length - stated.records_at
        tail = store.log.peek(frame_at + stated.records_at, size)
        if is_vouched(head, tail, frame_at, store.seed):
            return _identity_in(decode_records(tail, frame_at), row)
    # Damaged: this says so.
    return _identity_in(store.reading.frame(frame_at).records, row)


def _identity_in(records: Iterable[object], row: int) -> tuple[bytes, int]:
    for record in records:
        if isinstance(record, Prepared) and record.first == row:
            return record.transaction_id.encode(), record.head
        if isinstance(record, Moved) and record.rows[0].half_offset == row:
            return record.rows[0].transaction_id.encode(), record.rows[0].head
    return b"", UNKNOWN
