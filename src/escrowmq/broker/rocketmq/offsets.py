"""Offsets of consumer groups, questions about queue offsets, resets of groups, and queue locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.json_answers import answer_json
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting import admin_headers, bodies, consumer_headers
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.pop.places import PopPlaces
    from escrowmq.broker.rocketmq.relaying import GroupNotices
    from escrowmq.broker.state.group_offsets import GroupOffsets
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.queues import ReadableQueue
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.meta_writing import MetaWriting


@dataclass(frozen=True, slots=True)
class OffsetRequests:
    """Handles requests about the offsets of consumer groups and of queues, and resets of groups."""

    offsets: GroupOffsets
    topics: Topics
    groups: Groups
    meta_writing: MetaWriting
    notices: GroupNotices
    identity: Identity
    places: PopPlaces

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> None:
        """Answer how far a group has read a queue."""
        header = request.header(consumer_headers.QueryOffsetHeader)
        key = (header.consumer_group, header.topic, header.queue_id)
        known = self.offsets.known(key, zero_if_recent=header.zero_if_none)
        if known is None:
            request.answer(
                ResponseCode.QUERY_NOT_FOUND, remark="the group has never read this queue"
            )
            return
        request.answer(header=consumer_headers.OffsetResponseHeader(offset=known))

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request) -> None:
        """Set the offset that a group reports; it may also go back."""
        header = request.header(consumer_headers.UpdateOffsetHeader)
        self.groups.named(header.consumer_group)
        self.topics.to_read(header.topic, header.queue_id)
        key = (header.consumer_group, header.topic, header.queue_id)
        self.offsets.report(request.connection, key, header.commit_offset)
        request.answer()

    @handles(RequestCode.GET_MAX_OFFSET)
    def highest(self, request: Request) -> None:
        """Answer with the offset of the next message."""
        header = request.header(consumer_headers.QueueHeader)
        queue = self._queue(header)
        offset = queue.end if queue else 0
        self.offsets.reach.tell(request.connection, header.topic, header.queue_id, offset)
        request.answer(header=consumer_headers.OffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_MIN_OFFSET)
    def lowest(self, request: Request) -> None:
        """Answer with the offset of the first message."""
        queue = self._queue(request.header(consumer_headers.QueueHeader))
        request.answer(
            header=consumer_headers.OffsetResponseHeader(offset=queue.start if queue else 0)
        )

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, request: Request) -> None:
        """Answer with the offset of the first message since a time, or of the last one up to it."""
        header = request.header(consumer_headers.SearchOffsetHeader)
        queue = self._queue(header)
        offset = 0
        if queue is not None:
            offset = queue.offset_at(header.stored_at_ms + header.is_upper)
            if header.is_upper:
                offset = max(offset - 1, queue.start)
        self.offsets.reach.tell(request.connection, header.topic, header.queue_id, offset)
        request.answer(header=consumer_headers.OffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest(self, request: Request) -> None:
        """Answer when the first message became visible; -1 if there is none."""
        queue = self._queue(request.header(consumer_headers.QueueHeader))
        at_ms = -1
        if queue is not None and queue.start < queue.end:
            at_ms = queue.at_ms(queue.start)
        request.answer(header=consumer_headers.StoreTimeResponseHeader(stored_at_ms=at_ms))

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, request: Request) -> None:
        """Set a whole group to an offset or a time, online or not."""
        header = request.header(admin_headers.ResetOffsetHeader)
        topic = self.topics.named(header.topic)
        self.groups.made(header.consumer_group)
        queue_ids = range(topic.read_queue_count)
        if header.queue_id >= 0:
            self.topics.to_read(header.topic, header.queue_id)
            queue_ids = range(header.queue_id, header.queue_id + 1)
        offsets = {}
        places = {queue_id: self._reset_to(header, queue_id) for queue_id in queue_ids}
        self.places.reset(header.consumer_group, topic.name, places)
        for queue_id, offset in places.items():
            self.offsets.meta.set_offset(
                header.consumer_group, topic.name, queue_id, offset, reset=True
            )
            name = bodies.QueueName(
                broker_name=self.identity.name, queue_id=queue_id, topic=topic.name
            )
            offsets[name] = offset
        body = bodies.encode_offsets(offsets)

        def written(_: None) -> None:
            self.notices.send(
                header.consumer_group, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body
            )
            request.answer(body=body)

        # The caller relies on the reset, so the answer waits until it is written.
        self.meta_writing.soon(request, self.meta_writing.write(), written)

    def _queue(
        self, header: consumer_headers.QueueHeader | consumer_headers.SearchOffsetHeader
    ) -> ReadableQueue | None:
        self.topics.to_read(header.topic, header.queue_id)
        return self.offsets.queues.get(header.topic, header.queue_id)

    def _reset_to(self, header: admin_headers.ResetOffsetHeader, queue_id: int) -> int:
        queue = self.offsets.queues.get(header.topic, queue_id)
        if queue is None:
            return 0
        if header.offset is not None and header.offset >= 0:
            return min(max(header.offset, queue.start), queue.end)
        # A time below 0 means the end.
        return queue.offset_at(header.stored_at_ms) if header.stored_at_ms >= 0 else queue.end


LOCK_MS = 60_000
"""Lifetime of a queue lock; an ordered consumer renews it by asking again."""

LOCKS_MAX = 1_000_000


class QueueLocks:
    """Handles requests about queue locks. Use it from one event loop only."""

    def __init__(self, clock: BrokerClock) -> None:
        self._clock = clock
        #: By group, then by queue: the client that holds the lock, and when the lock expires.
        self._locks: dict[str, dict[tuple[str, int], tuple[str, int]]] = {}
        self._count = 0

    @handles(RequestCode.LOCK_BATCH_MQ)
    def lock(self, request: Request) -> None:
        """Lock queues for an ordered consumer, except those that another one holds."""
        wanted = bodies.read_body(bodies.LockRequest, request.frame.body)
        now_ms = self._clock.monotonic_ms()
        locks = self._locks.setdefault(wanted.consumer_group, {})
        taken: list[bodies.QueueName] = []
        for queue in wanted.queues:
            key = (queue.topic, queue.queue_id)
            holder, until_ms = locks.get(key, ("", 0))
            if holder in ("", wanted.client_id) or until_ms <= now_ms:
                if key not in locks:
                    if self._count >= LOCKS_MAX:
                        raise RequestRefused("too_many_locks", "use fewer ordered queues")
                    self._count += 1
                locks[key] = (wanted.client_id, now_ms + LOCK_MS)
                taken.append(queue)
        answer_json(request, bodies.LockResponse(queues=tuple(taken)))

    @handles(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, request: Request) -> None:
        """Release the locks of an ordered consumer."""
        given = bodies.read_body(bodies.LockRequest, request.frame.body)
        locks = self._locks.get(given.consumer_group, {})
        for queue in given.queues:
            key = (queue.topic, queue.queue_id)
            if locks.get(key, ("", 0))[0] == given.client_id:
                del locks[key]
                self._count -= 1
        request.answer()

    def has_any(self, group: str) -> bool:
        """Return whether members of a group consume in order now."""
        now_ms = self._clock.monotonic_ms()
        return any(until_ms > now_ms for _, until_ms in self._locks.get(group, {}).values())

    def expire(self) -> None:
        """Drop expired locks."""
        now_ms = self._clock.monotonic_ms()
        kept = {
            group: {key: lock for key, lock in locks.items() if lock[1] > now_ms}
            for group, locks in self._locks.items()
        }
        self._locks = {group: locks for group, locks in kept.items() if locks}
        self._count = sum(map(len, self._locks.values()))
