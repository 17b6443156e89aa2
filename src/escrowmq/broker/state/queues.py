"""All queues that can be read: ordinary ones, and the views behind the system topics.

Callers get offsets, times and messages here and need not know which kind a queue is.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NotRequired, Protocol, TypedDict, Unpack

from escrowmq.broker.state.system_queues import HalfView, OpView, ParkedView
from escrowmq.protocol.message.message_views import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from escrowmq.store.reading.reader import Pulled, StoreReader
from escrowmq.store.store import Store


class ReadableQueue(Protocol):
    """Interface of every queue, a view or not."""

    @property
    def start(self) -> int:
        """The lowest offset at which there may be a message."""
        ...

    @property
    def end(self) -> int:
        """The next message will have this offset or a higher one."""
        ...

    def offset_at(self, visible_at_ms: int) -> int:
        """Return the offset of the first message visible at or after this time, or a lower one."""
        ...

    def at_ms(self, offset: int) -> int:
        """Return when the message at this offset became visible; 0 if that is unknown."""
        ...


class ComputedQueue(ReadableQueue, Protocol):
    """A queue that is not stored."""

    def pull(
        self, offset: int, *, count_max: int, bytes_max: int, codes: Container[int] | None
    ) -> Pulled:
        """Return messages from this offset on; with ``codes``, only those with such tags."""
        ...


class PullLimits(TypedDict):
    """How many messages a pull returns, and how many it looks at."""

    count_max: int
    bytes_max: int
    #: Hashes of tags: only messages with one of them; None for all messages.
    codes: Container[int] | None
    #: A further limit on the entries of a stored queue that a filtered read examines.
    examined_max: NotRequired[int | None]


class Queues:
    """All queues that can be read, by topic and queue id."""

    def __init__(self, store: Store, reader: StoreReader, store_host: bytes) -> None:
        self._store = store
        self._reader = reader
        #: System topics whose messages are computed; each has one queue, number 0.
        self.views: dict[str, ComputedQueue] = {
            HALF_TOPIC: HalfView(store),
            OP_TOPIC: OpView(store, store_host),
            PARKED_TOPIC: ParkedView(store),
        }

    def get(self, topic: str, queue_id: int) -> ReadableQueue | None:
        """Return the queue; None if no message was ever sent to it."""
        view = self.views.get(topic)
        if view is not None:
            return view if queue_id == 0 else None
        return self._reader.queue(topic, queue_id)

    def is_recent(self, topic: str, queue_id: int, bytes_max: int) -> bool:
        """Return whether a queue begins at most this many bytes before the end of the log.

        A queue that never had a message does; one whose first messages are deleted does not.
        """
        queue = self._reader.queue(topic, queue_id)
        if queue is None or queue.end == 0:
            return True
        log_end = self._store.log.end
        return queue.start == 0 and log_end - queue.entries(0, 1)[0].log_offset <= bytes_max

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return start and end of every queue, by topic and queue id."""
        plain = {
            (one.topic, one.queue_id): (one.start, one.end) for one in self._store.queues.values()
        }
        return plain | {(topic, 0): (one.start, one.end) for topic, one in self.views.items()}

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        **limits: Unpack[PullLimits],
    ) -> Pulled:
        """Return messages from this offset on, as ``StoreReader.pull`` does."""
        view = self.views.get(topic)
        if view is None:
            return self._reader.pull(topic, queue_id, offset, **limits)
        count_max, bytes_max = limits["count_max"], limits["bytes_max"]
        return view.pull(offset, count_max=count_max, bytes_max=bytes_max, codes=limits["codes"])
