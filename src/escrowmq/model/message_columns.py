"""Very many messages of one request, by the column: nothing is made for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np

from escrowmq.model.message import Message

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Slices(msgspec.Struct, frozen=True):
    """Bytes that stand one after the other in a buffer."""

    #: Not a view of it: slices of bytes are made faster, and the collector does not count them.
    data: bytes
    #: Where each begins, and where the last one ends.
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def each(self) -> list[bytes]:
        """All of them."""
        data = self.data
        return [data[start:end] for start, end in pairwise(self.offsets.tolist())]

    @property
    def lengths(self) -> Numbers:
        """How many bytes each has."""
        return np.diff(self.offsets)


class QueueOfColumns(msgspec.Struct, frozen=True):
    """A queue that some of the messages are for."""

    topic: str
    queue_id: int
    #: What is added to the properties of its messages.
    more_properties: bytes


class MessageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Half messages that keep all limits.  A column for each field, an item for each message."""

    queues: tuple[QueueOfColumns, ...]
    #: Which of the queues each is for.
    queue_of: Numbers
    bodies: Slices
    #: As they were sent; each is empty, or ends as a pair does.
    properties: Slices
    flags: Numbers
    sys_flags: Numbers
    born_at_ms: Numbers
    born_host: bytes
    #: What is found by: CRC-32 of the unique keys and of further keys, and whose each of those is.
    unique: list[int]
    keys: list[int]
    keyed: list[int]
    #: Codes of the tags.
    tags: list[int]
    #: How long after the commit each becomes visible; empty when none waits.
    deliver_after_ms: list[int]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def property_bytes(self) -> Numbers:
        """How long the properties are, with what is added."""
        added = np.array([len(queue.more_properties) for queue in self.queues], dtype=np.int64)
        return self.properties.lengths + added[self.queue_of]

    @property
    def size(self) -> int:
        """Bytes of all bodies and properties."""
        return int(self.bodies.lengths.sum() + self.property_bytes.sum())

    def contents(self) -> Iterator[Message]:
        """What is compared when a request is repeated: queues and bodies."""
        for number, body in zip(self.queue_of.tolist(), self.bodies.each(), strict=True):
            queue = self.queues[number]
            yield Message(topic=queue.topic, queue_id=queue.queue_id, body=body)
