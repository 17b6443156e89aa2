"""Every queue that can be read: ordinary ones, and the views that are the system's topics.

Whoever asks for offsets, times or messages asks here and need not know which of them it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from escrowmq.broker.views import HalfView, OpView, ParkedView
from escrowmq.protocol.message_views import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC

if TYPE_CHECKING:
    from collections.abc import Container

    from escrowmq.store.consume_queue import ConsumeQueue
    from escrowmq.store.reader import Pulled, Reader
    from escrowmq.store.store import Store


class Queue(Protocol):
    """What can be asked of any queue, a view or not."""

    @property
    def start(self) -> int:
        """The lowest offset at which there may be a message."""
        ...

    @property
    def end(self) -> int:
        """Where the next message will be, or after it."""
        ...

    def offset_at(self, visible_at_ms: int) -> int:
        """The first message visible at or after this time, or one before it."""
        ...

    def at_ms(self, offset: int) -> int:
        """When what is at this offset became visible; 0 if nobody can tell."""
        ...


class PlainQueue(NamedTuple):
    """An ordinary queue."""

    queue: ConsumeQueue

    @property
    def start(self) -> int:
        """The lowest offset."""
        return self.queue.start

    @property
    def end(self) -> int:
        """Where the next message will be."""
        return self.queue.end

    def offset_at(self, visible_at_ms: int) -> int:
        """The first message visible at or after this time."""
        return self.queue.offset_at(visible_at_ms)

    def at_ms(self, offset: int) -> int:
        """When this message became visible."""
        is_there = self.start <= offset < self.end
        return self.queue.entries(offset, 1)[0].visible_at_ms if is_there else 0


class View(Queue, Protocol):
    """A queue that is not stored."""

    def pull(
        self, offset: int, *, count_max: int, bytes_max: int, codes: Container[int] | None
    ) -> Pulled:
        """Messages from this offset on; with ``codes``, only those with such tags."""
        ...


class Queues:
    """Every queue that can be read, by topic and queue id."""

    def __init__(self, store: Store, reader: Reader, store_host: bytes) -> None:
        self._store = store
        self._reader = reader
        #: Each has one queue, number 0.
        self.views: dict[str, View] = {
            HALF_TOPIC: HalfView(store),
            OP_TOPIC: OpView(store, store_host),
            PARKED_TOPIC: ParkedView(store),
        }

    def get(self, topic: str, queue_id: int) -> Queue | None:
        """The queue, if anything was ever sent to it."""
        view = self.views.get(topic)
        if view is not None:
            return view if queue_id == 0 else None
        queue = self._reader.queue(topic, queue_id)
        return None if queue is None else PlainQueue(queue)

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Start and end of every queue there is, by topic and queue id."""
        plain = {
            (one.topic, one.queue_id): (one.start, one.end) for one in self._store.queues.values()
        }
        return plain | {(topic, 0): (one.start, one.end) for topic, one in self.views.items()}

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        codes: Container[int] | None,
    ) -> Pulled:
        """Messages from this queue offset on; with ``codes``, only those with such tags."""
        view = self.views.get(topic)
        if view is None:
            return self._reader.pull(
                topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max, codes=codes
            )
        return view.pull(offset, count_max=count_max, bytes_max=bytes_max, codes=codes)
