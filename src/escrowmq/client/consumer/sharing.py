"""Assignment of queues to the members of a consumer group, and progress in one queue.

Each member computes the same assignment from the same lists, as RocketMQ's own clients do. So
members need no coordination, and RocketMQ's clients may be in the same group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(queues: Sequence[T], client_ids: Sequence[str], me: str) -> list[T]:
    """Return my share: adjacent queues, evenly divided; both lists must be sorted."""
    if me not in client_ids:
        # The broker does not know me yet, so other members still read all queues.
        return []
    index = client_ids.index(me)
    each, rest = divmod(len(queues), len(client_ids))
    start = index * each + min(index, rest)
    return list(queues[start : start + each + (index < rest)])


class QueueProgress:
    """Offsets of one queue whose messages went to handlers, and which of them are done."""

    def __init__(self, offset: int) -> None:
        #: The offset to read next.
        self.next_offset = offset
        #: Offsets of messages that went to handlers and are not done, in order.
        self._open: dict[int, None] = {}

    def take(self, offset: int) -> None:
        """Note that a message was given to its handler."""
        self._open[offset] = None

    def finish(self, offset: int) -> None:
        """Note that a message is done."""
        self._open.pop(offset, None)

    def go_on(self, offset: int) -> None:
        """Continue at this offset. A lower one means that the group was moved back to it."""
        if offset < self.next_offset:
            self._open.clear()
        self.next_offset = offset

    @property
    def open(self) -> int:
        """The number of messages that were taken and are not done."""
        return len(self._open)

    @property
    def committed(self) -> int:
        """The offset to resume at after a restart: every message before it is done."""
        return next(iter(self._open), self.next_offset)
