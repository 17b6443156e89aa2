"""Messages of one large request in columns: no object is made per message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np

from escrowmq.model.message import SentMessage

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Slices(msgspec.Struct, frozen=True):
    """Byte strings stored one after another in a buffer."""

    #: Not a memoryview: slices of bytes are faster to make, and the garbage collector does not
    #: count them.
    data: bytes
    #: Start of each byte string, and the end of the last one.
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def each(self) -> list[bytes]:
        """All byte strings, in order."""
        data = self.data
        return [data[start:end] for start, end in pairwise(self.offsets.tolist())]

    @property
    def lengths(self) -> Numbers:
        """Length of each byte string."""
        return np.diff(self.offsets)


class QueueOfColumns(msgspec.Struct, frozen=True):
    """Target queue of some of the messages."""

    topic: str
    queue_id: int
    #: Appended to the properties of each message in this queue.
    more_properties: bytes


class MessageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Half messages that are within all limits. One column per field, one item per message."""

    queues: tuple[QueueOfColumns, ...]
    #: Index into ``queues`` for each message.
    queue_of: Numbers
    bodies: Slices
    #: As sent; each is empty, or ends with the terminator of a property.
    properties: Slices
    flags: Numbers
    sys_flags: Numbers
    born_at_ms: Numbers
    born_host: bytes
    #: Keys of the index: CRC-32 of the unique keys and of further keys, and the index of the
    #: message that each further key belongs to.
    unique: list[int]
    keys: list[int]
    keyed: list[int]
    #: Codes of the tags.
    tags: list[int]
    #: Delay after the commit until each becomes visible; empty when no message is delayed.
    deliver_after_ms: list[int]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def property_bytes(self) -> Numbers:
        """Bytes of each message's properties, including the appended ones."""
        added = np.array([len(queue.more_properties) for queue in self.queues], dtype=np.int64)
        return self.properties.lengths + added[self.queue_of]

    @property
    def size(self) -> int:
        """Bytes of all bodies and properties."""
        return int(self.bodies.lengths.sum() + self.property_bytes.sum())

    def contents(self) -> Iterator[SentMessage]:
        """The queue and body of each message, for comparison when a request is repeated."""
        for number, body in zip(self.queue_of.tolist(), self.bodies.each(), strict=True):
            queue = self.queues[number]
            yield SentMessage(topic=queue.topic, queue_id=queue.queue_id, body=body)
