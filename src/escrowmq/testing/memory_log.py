"""A commit log in a list: the frames of a core that has no store around it.

Messages have the sizes that they have in the real store, and records go through their encoding and
back, so that the limits are the same here as on a disk.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from escrowmq.protocol.properties import tags_code
from escrowmq.protocol.stored_message import encoded_size
from escrowmq.store.frames import HEAD_BYTES, decode_records, encode_records
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import (
    UNNUMBERED,
    Op,
    Prepared,
    Record,
    Scheduled,
    Stored,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.message import Message

_STORE_HOST_BYTES = 8


class MemoryFrame(msgspec.Struct, frozen=True):
    """What one command wrote."""

    where: Where
    records: list[Record]
    messages: tuple[Message, ...]

    @property
    def log_offsets(self) -> list[int]:
        """Where each message is."""
        sizes = map(_size, self.messages[:-1])
        return list(accumulate(sizes, initial=self.where.messages)) if self.messages else []


class MemoryLog:
    """Frames, oldest first, and what can be read from them by offset."""

    def __init__(self) -> None:
        self.frames: list[MemoryFrame] = []
        self.end = 0
        self._frame_by_offset: dict[int, MemoryFrame] = {}
        self._message_by_offset: dict[int, Message] = {}
        #: By a request's first row: its transaction id and number.
        self._identities: dict[int, tuple[str, int]] = {}

    def append(
        self, records: Sequence[Record], messages: Sequence[Message], at_ms: int
    ) -> MemoryFrame:
        """Add a frame; sizes and checksums of new messages are filled in, as the store does."""
        for record in records:
            if isinstance(record, Stored | Scheduled | Prepared) and not record.placed.sizes:
                _place(record, messages)
        encoded = encode_records(tuple(records))
        where = Where(self.end, self.end + HEAD_BYTES, at_ms)
        frame = MemoryFrame(where, decode_records(encoded, self.end), tuple(messages))
        self.take(frame)
        self.end += HEAD_BYTES + sum(map(_size, messages)) + len(encoded)
        return frame

    def take(self, frame: MemoryFrame) -> None:
        """Add a frame as another log had it."""
        self.frames.append(frame)
        self._frame_by_offset[frame.where.frame] = frame
        self._message_by_offset.update(zip(frame.log_offsets, frame.messages, strict=True))
        for record in frame.records:
            if isinstance(record, Prepared):
                self._identities[record.first] = (record.transaction_id, record.number)

    def message_at(self, log_offset: int) -> Message:
        """The message that was written here."""
        return self._message_by_offset[log_offset]

    def identity(self, first: int) -> tuple[str, int]:
        """Transaction id and number of the request that starts at this row."""
        return self._identities.get(first, ("", UNNUMBERED))

    def decision(self, op_offset: int) -> tuple[str, int]:
        """Who decided in the frame at this offset, and when."""
        frame = self._frame_by_offset[op_offset]
        by = next(r.by for r in frame.records if isinstance(r, Op))
        return by, frame.where.at_ms


def _place(record: Stored | Scheduled | Prepared, messages: Sequence[Message]) -> None:
    placed = record.placed
    placed.sizes = list(map(_size, messages))
    placed.crcs = [crc32(message.body) for message in messages]
    placed.tags = [tags_code(message.tags) for message in messages]
    placed.unique = [crc32(message.unique_key.encode()) for message in messages]


def _size(message: Message) -> int:
    return encoded_size(message, _STORE_HOST_BYTES)
