"""Which queues a member of a consumer group reads, and how far it has come in one.

Everybody in a group computes the same from the same lists, as RocketMQ's own clients do, so they
need not talk to each other and may share a group with ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(queues: Sequence[T], client_ids: Sequence[str], me: str) -> list[T]:
    """My part of the queues: neighbours, as even as can be; both lists are in order."""
    if me not in client_ids:
        # The broker has not heard of me yet: whatever I took, somebody else has it too.
        return []
    index = client_ids.index(me)
    each, rest = divmod(len(queues), len(client_ids))
    start = index * each + min(index, rest)
    return list(queues[start : start + each + (index < rest)])


class Progress:
    """The offsets of one queue that were taken, and those of them that are done."""

    def __init__(self, offset: int) -> None:
        #: Where to read on.
        self.next_offset = offset
        #: Taken and not done, in order.
        self._open: dict[int, None] = {}

    def take(self, offset: int) -> None:
        """A message is handed to its handler."""
        self._open[offset] = None

    def finish(self, offset: int) -> None:
        """It need not come again."""
        self._open.pop(offset, None)

    def go_on(self, offset: int) -> None:
        """Read on from here.  Back means that the group was sent there: all comes again."""
        if offset < self.next_offset:
            self._open.clear()
        self.next_offset = offset

    @property
    def open(self) -> int:
        """How many were taken and are not done."""
        return len(self._open)

    @property
    def committed(self) -> int:
        """Everything before it is done: where to go on after a restart."""
        return next(iter(self._open), self.next_offset)
