"""Consumer offsets, questions about queue offsets, and queue locks of ordered consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.admin_headers import ResetOffsetHeader
from escrowmq.protocol.bodies import (
    LockRequest,
    LockResponse,
    Queue,
    encode_body,
    encode_offsets,
    read_body,
)
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import (
    OffsetResponseHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    StoreTimeResponseHeader,
    UpdateOffsetHeader,
)
from escrowmq.protocol.remoting import encode_request

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.connection import Connection
    from escrowmq.broker.queues import Queue as ReadQueue
    from escrowmq.store.meta import OffsetKey

LOCK_MS = 60_000
"""Lifetime of a queue lock; an ordered consumer renews it by asking again."""

LOCKS_MAX = 1_000_000
RECENT_BYTES = 1024 * 1024 * 1024
"""A group that has never read a queue starts at 0 if the queue's first message is at most this many
bytes behind the end of the log."""


class Offsets:
    """Handles requests about offsets and queue locks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By group, then by queue: the client that holds the lock, and when the lock expires.
        self._locks: dict[str, dict[tuple[str, int], tuple[str, int]]] = {}
        self._lock_count = 0

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self.highest,
            RequestCode.GET_MIN_OFFSET: self.lowest,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def query(self, request: Request) -> None:
        """Answer how far a group has read a queue."""
        header = request.header(QueryOffsetHeader)
        key = (header.consumer_group, header.topic, header.queue_id)
        known = self._broker.meta.offsets.get(key)
        if known is None and header.zero_if_none and self._is_recent(header.topic, header.queue_id):
            known = 0
        if known is None and self._broker.catalog.has_lost_offsets(header.consumer_group):
            # Its offset may be lost. A client that gets no offset starts at the end of the queue.
            queue = self._broker.queues.get(header.topic, header.queue_id)
            known = 0 if queue is None else queue.start
        if known is None:
            request.answer(
                ResponseCode.QUERY_NOT_FOUND, remark="the group has never read this queue"
            )
            return
        request.answer(header=OffsetResponseHeader(offset=known))

    def _is_recent(self, topic: str, queue_id: int) -> bool:
        queue = self._broker.reader.queue(topic, queue_id)
        if queue is None or queue.end == 0:
            return True
        if queue.start > 0:
            return False
        first = queue.entries(0, 1)[0]
        return self._broker.store.log.end - first.log_offset <= RECENT_BYTES

    def update(self, request: Request) -> None:
        """Set the offset that a group reports; it may also go back."""
        header = request.header(UpdateOffsetHeader)
        self._broker.groups.named(header.consumer_group)
        self._broker.topics.to_read(header.topic, header.queue_id)
        self._broker.expiring.note(header.consumer_group, header.topic)
        key = (header.consumer_group, header.topic, header.queue_id)
        self.commit(request.connection, key, header.commit_offset, reset=True)
        request.answer()

    def commit(
        self, connection: Connection, key: OffsetKey, offset: int, *, reset: bool = False
    ) -> None:
        """Set the offset of a group, at most to the end of the queue."""
        broker = self._broker
        queue = broker.queues.get(*key[1:])
        end = 0 if queue is None else queue.end
        base = None
        if key[1] not in broker.queues.views:
            base = broker.reach.base_if_foreign(connection, *key, offset)
        if base is not None:
            # Keep the progress that other members have made in this history.
            offset, reset = base, False
        broker.meta.set_offset(*key, min(offset, end), reset=reset)

    def highest(self, request: Request) -> None:
        """Answer with the offset of the next message."""
        header = request.header(QueueHeader)
        queue = self._queue(header)
        offset = queue.end if queue else 0
        self._broker.reach.tell(request.connection, header.topic, header.queue_id, offset)
        request.answer(header=OffsetResponseHeader(offset=offset))

    def lowest(self, request: Request) -> None:
        """Answer with the offset of the first message."""
        queue = self._queue(request.header(QueueHeader))
        request.answer(header=OffsetResponseHeader(offset=queue.start if queue else 0))

    def search(self, request: Request) -> None:
        """Answer with the first message at or after a time, or with the last one up to it."""
        header = request.header(SearchOffsetHeader)
        queue = self._queue(header)
        offset = 0
        if queue is not None:
            offset = queue.offset_at(header.stored_at_ms + header.is_upper)
            if header.is_upper:
                offset = max(offset - 1, queue.start)
        self._broker.reach.tell(request.connection, header.topic, header.queue_id, offset)
        request.answer(header=OffsetResponseHeader(offset=offset))

    def earliest(self, request: Request) -> None:
        """Answer when the first message became visible; -1 if there is none."""
        queue = self._queue(request.header(QueueHeader))
        at_ms = -1
        if queue is not None and queue.start < queue.end:
            at_ms = queue.at_ms(queue.start)
        request.answer(header=StoreTimeResponseHeader(stored_at_ms=at_ms))

    def reset(self, request: Request) -> None:
        """Set a whole group to an offset or a time, online or not."""
        header = request.header(ResetOffsetHeader)
        broker = self._broker
        topic = broker.topics.named(header.topic)
        broker.groups.made(header.consumer_group)
        queue_ids = range(topic.read_queue_count)
        if header.queue_id >= 0:
            broker.topics.to_read(header.topic, header.queue_id)
            queue_ids = range(header.queue_id, header.queue_id + 1)
        offsets = {}
        for queue_id in queue_ids:
            offset = self._reset_to(header, queue_id)
            broker.meta.set_offset(header.consumer_group, topic.name, queue_id, offset, reset=True)
            name = Queue(broker_name=broker.config.name, queue_id=queue_id, topic=topic.name)
            offsets[name] = offset
        body = encode_offsets(offsets)

        def written() -> None:
            request.connection.settle()
            self._tell_reset(header, body)
            request.answer(body=body)

        def failed(error: BaseException) -> None:
            request.connection.settle()
            request.decline(error)

        # The caller relies on the reset, so the answer waits until it is written.
        request.connection.owe()
        broker.meta_writing.soon(broker.meta_writing.write(), written, failed)

    def _tell_reset(self, header: ResetOffsetHeader, body: bytes) -> None:
        broker = self._broker
        group = broker.clients.consumers(header.consumer_group)
        for member in group.members.values() if group is not None else ():
            member.connection.send(
                encode_request(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    broker.next_opaque(),
                    header=header,
                    body=body,
                    is_one_way=True,
                )
            )

    def _reset_to(self, header: ResetOffsetHeader, queue_id: int) -> int:
        queue = self._broker.queues.get(header.topic, queue_id)
        if queue is None:
            return 0
        if header.offset is not None and header.offset >= 0:
            return min(max(header.offset, queue.start), queue.end)
        # A time below 0 means the end.
        return queue.offset_at(header.stored_at_ms) if header.stored_at_ms >= 0 else queue.end

    def _queue(self, header: QueueHeader | SearchOffsetHeader) -> ReadQueue | None:
        self._broker.topics.to_read(header.topic, header.queue_id)
        return self._broker.queues.get(header.topic, header.queue_id)

    # Locks.

    def lock(self, request: Request) -> None:
        """Lock queues for an ordered consumer, except those that another one holds."""
        wanted = read_body(LockRequest, request.frame.body)
        now_ms = self._broker.clock.monotonic_ms()
        locks = self._locks.setdefault(wanted.consumer_group, {})
        taken: list[Queue] = []
        for queue in wanted.queues:
            key = (queue.topic, queue.queue_id)
            holder, until_ms = locks.get(key, ("", 0))
            if holder in ("", wanted.client_id) or until_ms <= now_ms:
                if key not in locks:
                    if self._lock_count >= LOCKS_MAX:
                        raise RequestRefused("too_many_locks", "use fewer ordered queues")
                    self._lock_count += 1
                locks[key] = (wanted.client_id, now_ms + LOCK_MS)
                taken.append(queue)
        request.answer(body=encode_body(LockResponse(queues=tuple(taken))))

    def unlock(self, request: Request) -> None:
        """Release the locks of an ordered consumer."""
        given = read_body(LockRequest, request.frame.body)
        locks = self._locks.get(given.consumer_group, {})
        for queue in given.queues:
            key = (queue.topic, queue.queue_id)
            if locks.get(key, ("", 0))[0] == given.client_id:
                del locks[key]
                self._lock_count -= 1
        request.answer()

    def has_locks(self, group: str) -> bool:
        """Return whether members of a group consume in order now."""
        now_ms = self._broker.clock.monotonic_ms()
        return any(until_ms > now_ms for _, until_ms in self._locks.get(group, {}).values())

    def expire(self) -> None:
        """Drop expired locks."""
        now_ms = self._broker.clock.monotonic_ms()
        kept = {
            group: {key: lock for key, lock in locks.items() if lock[1] > now_ms}
            for group, locks in self._locks.items()
        }
        self._locks = {group: locks for group, locks in kept.items() if locks}
        self._lock_count = sum(map(len, self._locks.values()))
