"""Bulk reads of transaction ids, which are only in the log, in the records of each frame.

Only heads and records are verified; code that reads a message verifies the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.disk.rows import Rows, windows
from escrowmq.store.log import lone_frames
from escrowmq.store.log.frames import (
    FRAME_HEAD,
    HEAD_BYTES,
    are_ours,
    are_vouched,
    decode_records,
    is_vouched,
    stated_head,
)
from escrowmq.transaction.records import Record, request_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.store import Store

UNKNOWN = -1
"""Head of a request that is no longer in the log."""

READ_BYTES = 512 * 1024
"""Frames near each other are read together, about this many bytes at a time."""

_GAP_BYTES = 16 * 1024
#: Bytes read of the last frame: enough unless its message is large.
_LAST_BYTES = 4 * 1024


def identities(store: Store, rows: Rows, locations: Rows) -> tuple[list[bytes], Rows]:
    """Return transaction id and head of each request, given its first row and that row's location.

    Ids are UTF-8. If retention has deleted the frame, or it is lost, the id is empty and the head
    is UNKNOWN.
    """
    ids = [b""] * len(rows)
    heads = np.full(len(rows), UNKNOWN, dtype=np.int64)
    frames_at = locations - HEAD_BYTES
    # Nearly always in order already, except for rows that were carried forward.
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
    """Return how many of these frames, from the first on, are near enough for one read."""
    count = int(np.searchsorted(frames_at, frames_at[0] + bytes_max))
    gaps = np.flatnonzero(np.diff(frames_at[:count]) > _GAP_BYTES)
    return int(gaps[0]) + 1 if len(gaps) else count


class _Block:
    """A block of the log, and the ids found in it."""

    def __init__(self, store: Store, data: bytes, start: int) -> None:
        self._seed = store.seed
        self._data = data
        self._start = start
        self.ids: list[bytes] = []

    def read(self, rows: Rows, places: Rows) -> Rows:
        """Return which frames at these places hold only the given half message; keep their ids."""
        data = self._data
        is_read = places + HEAD_BYTES <= len(data)
        places = places[is_read]
        heads = windows(data, FRAME_HEAD, places)
        tails, ends = places + heads["records_at"], places + heads["length"]
        is_whole = are_ours(heads, places + self._start)
        is_whole &= (tails + lone_frames.HALF_BYTES <= ends) & (ends <= len(data))
        is_read[is_read] = is_whole
        places, heads, tails, ends = (column[is_whole] for column in (places, heads, tails, ends))
        records = windows(data, lone_frames.HALF, tails)
        is_lone = (records["mark"] == lone_frames.MARK) & (records["kind"] == lone_frames.HALF_KIND)
        is_lone &= records["row"] == rows[is_read]
        is_lone &= are_vouched(data, places, heads, self._seed)
        is_read[is_read] = is_lone
        ids_at = tails + lone_frames.HALF_BYTES + 4 * records["key_count"].astype(np.int64)
        pairs = zip(ids_at[is_lone].tolist(), ends[is_lone].tolist(), strict=True)
        self.ids = [data[at:end] for at, end in pairs]
        return is_read


def _alone(store: Store, row: int, frame_at: int) -> tuple[bytes, int]:
    """Return id and head of one request, whose frame may be of any kind."""
    if store.lost.hold(frame_at):
        return b"", UNKNOWN
    head = store.log.peek(frame_at, HEAD_BYTES)
    stated = stated_head(head)
    if stated is not None:
        # Skip the messages, which may be megabytes.
        size = stated.length - stated.records_at
        tail = store.log.peek(frame_at + stated.records_at, size)
        if is_vouched(head, tail, frame_at, store.seed):
            return _identity_in(decode_records(tail, frame_at), row)
    # The frame is damaged, and this call raises.
    return _identity_in(store.reading.frame(frame_at).records, row)


def _identity_in(records: Iterable[Record], row: int) -> tuple[bytes, int]:
    found = request_in(records, row)
    return (found.transaction_id.encode(), found.head) if found else (b"", UNKNOWN)
