"""A commit log in a list: the frames of a core without a store.

Messages have the same sizes as in the real store, and records are encoded and decoded, so the same
limits apply as on a disk.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from escrowmq.protocol.message.properties import tags_code
from escrowmq.protocol.message.stored_message import encoded_size
from escrowmq.store.log.frames import HEAD_BYTES, decode_records, encode_records
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import UNNUMBERED, NewRecord, Op, Placed, Prepared, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.message import SentMessage

_STORE_HOST_BYTES = 8


class MemoryFrame(msgspec.Struct, frozen=True):
    """The frame that one command wrote."""

    where: Where
    records: list[Record]
    messages: tuple[SentMessage, ...]

    @property
    def log_offsets(self) -> list[int]:
        """Log offset of each message."""
        sizes = map(_size, self.messages[:-1])
        return list(accumulate(sizes, initial=self.where.messages)) if self.messages else []


class MemoryLog:
    """Frames, oldest first, with lookups by log offset."""

    def __init__(self) -> None:
        self.frames: list[MemoryFrame] = []
        self.end = 0
        self._frame_by_offset: dict[int, MemoryFrame] = {}
        self._message_by_offset: dict[int, SentMessage] = {}
        #: Transaction id and number of each request, by its first row.
        self._identities: dict[int, tuple[str, int]] = {}

    def append(
        self, records: Sequence[Record], messages: Sequence[SentMessage], at_ms: int
    ) -> MemoryFrame:
        """Add a frame, with the sizes and checksums of new messages, as the store does."""
        encoded = encode_records(tuple(_placed(record, messages) for record in records))
        where = Where(self.end, self.end + HEAD_BYTES, at_ms)
        frame = MemoryFrame(where, decode_records(encoded, self.end), tuple(messages))
        self.take(frame)
        self.end += HEAD_BYTES + sum(map(_size, messages)) + len(encoded)
        return frame

    def take(self, frame: MemoryFrame) -> None:
        """Add a frame of another log unchanged."""
        self.frames.append(frame)
        self._frame_by_offset[frame.where.frame] = frame
        self._message_by_offset.update(zip(frame.log_offsets, frame.messages, strict=True))
        for record in frame.records:
            if isinstance(record, Prepared):
                self._identities[record.first] = (record.transaction_id, record.number)

    def message_at(self, log_offset: int) -> SentMessage:
        """Return the message at this log offset."""
        return self._message_by_offset[log_offset]

    def identity(self, first: int) -> tuple[str, int]:
        """Return transaction id and number of the request that starts at this row."""
        return self._identities.get(first, ("", UNNUMBERED))

    def decision(self, op_offset: int) -> tuple[str, int]:
        """Return the decider and the time of the decision in the frame at this offset."""
        frame = self._frame_by_offset[op_offset]
        by = next(r.by for r in frame.records if isinstance(r, Op))
        return by, frame.where.at_ms


def _placed(record: Record, messages: Sequence[SentMessage]) -> Record:
    if not isinstance(record, NewRecord):
        return record
    placed = Placed(
        queues=record.placed.queues,
        sizes=list(map(_size, messages)),
        crcs=[crc32(message.body) for message in messages],
        tags=[tags_code(message.tags) for message in messages],
        unique=[crc32(message.unique_key.encode()) for message in messages],
    )
    return msgspec.structs.replace(record, placed=placed)


def _size(message: SentMessage) -> int:
    return encoded_size(message, _STORE_HOST_BYTES)
