"""Transaction ids of many requests: they stand in the log only, in the records of each frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from escrowmq.store import lone
from escrowmq.store.frames import HEAD_BYTES, Vouched, decode_records, each_vouched
from escrowmq.transaction.records import Moved, Prepared

if TYPE_CHECKING:
    from escrowmq.store.store import Store

_BLOCK_BYTES = 16 * 1024


def transaction_ids(store: Store, requests: Iterable[tuple[int, int]]) -> list[str]:
    """The id of each request, given by its first row and where that one's bytes are.

    Empty where retention has deleted the frame, or damage has taken it.  Only heads and records are
    checked: whoever reads a message checks that.
    """
    reader = _Frames(store)
    return [reader.transaction_id(row, location - HEAD_BYTES) for row, location in requests]


class _Frames:
    """Frames in about the order of the log: what is read for one often has the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._block = memoryview(b"")
        self._block_at = 0

    def transaction_id(self, row: int, frame_at: int) -> str:
        store = self._store
        if frame_at < store.log.start or store.lost.hold(frame_at):
            return ""
        vouched = self._vouched(frame_at)
        if vouched is None:
            # Larger than a block, or damaged: then this says so.
            return _id_in(store.reading.frame(frame_at).records, row)
        tail = vouched[-1]
        if tail[0] == lone.MARK and tail[1] == lone.HALF_KIND:
            return lone.transaction_id(tail)
        return _id_in(decode_records(tail, frame_at), row)

    def _vouched(self, frame_at: int) -> Vouched | None:
        within = frame_at - self._block_at
        if 0 <= within < len(self._block):
            vouched = next(each_vouched(self._block, within, frame_at, self._store.seed), None)
            if vouched is not None:
                return vouched
        self._block = memoryview(self._store.log.peek(frame_at, _BLOCK_BYTES))
        self._block_at = frame_at
        return next(each_vouched(self._block, 0, frame_at, self._store.seed), None)


def _id_in(records: Iterable[object], row: int) -> str:
    for record in records:
        if isinstance(record, Prepared) and record.first == row:
            return record.transaction_id
        if isinstance(record, Moved) and record.rows[0].half_offset == row:
            return record.rows[0].transaction_id
    return ""
