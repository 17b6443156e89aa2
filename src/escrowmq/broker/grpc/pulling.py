"""PullMessage, UpdateOffset, GetOffset and QueryOffset: consumers that keep their own offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import ok
from escrowmq.broker.grpc.names import group_of, ms_of, topic_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.grpc.settings import RECEIVED_MAX, expression_of
from escrowmq.broker.grpc.streaming import stream
from escrowmq.broker.grpc.told_messages import told_message
from escrowmq.broker.state.long_polls import WAIT_MS_MAX, LongPolls, Queue
from escrowmq.broker.state.reach import note
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcCode, GrpcOffsetPolicy
from escrowmq.protocol.message.filter import TagCodes, parse_filter
from escrowmq.store.reading.reader import Pulled, ReadStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.grpc.telemetry import GrpcTelemetry
    from escrowmq.broker.pop.places import PopPlaces
    from escrowmq.broker.state.counting import BrokerCounts
    from escrowmq.broker.state.expiring import Uses
    from escrowmq.broker.state.group_offsets import GroupOffsets
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.queues import Queues
    from escrowmq.broker.state.topics import Topics

PULLED_BYTES_MAX = 256 * 1024
PULLED_MAX = 1_024

_POLICIES = frozenset(map(int, GrpcOffsetPolicy))
_CODES = {
    ReadStatus.FOUND: GrpcCode.OK,
    ReadStatus.NO_MATCH: GrpcCode.MESSAGE_NOT_FOUND,
    ReadStatus.NOTHING_NEW: GrpcCode.MESSAGE_NOT_FOUND,
    ReadStatus.BEHIND_START: GrpcCode.ILLEGAL_OFFSET,
    ReadStatus.BEYOND_END: GrpcCode.ILLEGAL_OFFSET,
}


@dataclass(slots=True, eq=False)
class WaitingGrpcPull:
    """A pull, which may wait for its queue to grow."""

    request: GrpcRequest
    group: str
    queue: Queue
    offset: int
    count_max: int
    wanted: TagCodes
    tick: int = 0
    is_over: bool = False

    @property
    def queues(self) -> tuple[Queue]:
        """The queue that it waits for."""
        return (self.queue,)

    @property
    def owner(self) -> GrpcRequest:
        """The pull's own request: when its call ends, no other pull of the client ends."""
        return self.request


@dataclass(eq=False)
class GrpcPulling:
    """Handles pulls and offsets."""

    groups: Groups
    topics: Topics
    queues: Queues
    offsets: GroupOffsets
    places: PopPlaces
    uses: Uses
    telemetry: GrpcTelemetry
    counts: BrokerCounts
    polls: LongPolls[WaitingGrpcPull] = field(init=False)

    def __post_init__(self) -> None:
        self.polls = LongPolls(self._finish)

    @serves("PullMessage")
    def pull(self, request: GrpcRequest, asked: grpc.PullMessageRequest) -> None:
        """Answer a pull, or let it wait."""
        group = self.groups.to_read(group_of(asked.group)).name
        queue = self._queue(asked.message_queue)
        wait_ms = ms_of(asked.long_polling_timeout)
        if asked.offset < 0:
            raise RequestRefused("offset_illegal", "the lowest offset is 0", offset=asked.offset)
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise RequestRefused(
                "polling_time_illegal", f"wait for 0 to {WAIT_MS_MAX} ms", wait_ms=wait_ms
            )
        self.uses.note(group, queue[0])
        count_max = min(asked.batch_size or RECEIVED_MAX, PULLED_MAX)
        wanted = parse_filter(expression_of(asked.filter_expression))
        pull = WaitingGrpcPull(request, group, queue, asked.offset, max(count_max, 1), wanted)
        told = self.telemetry.listener(request.client_id)
        popped_to = self.places.pulled(group, *queue)
        base = self.offsets.reach.base_if_foreign(told, group, *queue, asked.offset)
        if base is None and popped_to is not None and popped_to < asked.offset:
            # The group popped this queue until now, and its pop position is below this offset.
            base = popped_to
        if base is not None:
            self._answer(pull, Pulled(status=ReadStatus.BEYOND_END, next_offset=base))
        elif not self._finish(pull, may_wait=wait_ms > 0 and self.polls.has_room(request)):
            request.has_waited = True
            request.closed = lambda: self.polls.drop(request)
            self.polls.add(pull, wait_ms)

    def _finish(self, pull: WaitingGrpcPull, *, may_wait: bool | None = None) -> bool:
        """Answer a pull, unless it finds nothing and may wait; return whether it was answered."""
        if may_wait is None:
            may_wait = not pull.is_over
        try:
            pulled = self._look(pull)
        except Exception as error:  # noqa: BLE001 - one bad pull must not end the others
            pull.request.decline(error)
            return True
        pull.offset = pulled.next_offset
        reached = self.offsets.reach.of(pull.group, pull.queue[0])
        note(reached, pull.queue[1], pulled.next_offset)
        if may_wait and pulled.status is ReadStatus.NOTHING_NEW:
            return False
        self._answer(pull, pulled)
        return True

    def _look(self, pull: WaitingGrpcPull) -> Pulled:
        self.topics.to_read(*pull.queue)
        if pull.group in self.groups.paused:
            return Pulled(status=ReadStatus.NOTHING_NEW, next_offset=pull.offset)
        pulled = self.queues.pull(
            *pull.queue,
            pull.offset,
            count_max=pull.count_max,
            bytes_max=PULLED_BYTES_MAX,
            codes=pull.wanted,
        )
        if pulled.status is ReadStatus.NO_SUCH_QUEUE:
            # No message was ever sent to the queue.
            status = ReadStatus.BEYOND_END if pull.offset else ReadStatus.NOTHING_NEW
            return Pulled(status=status)
        return pulled

    def _answer(self, pull: WaitingGrpcPull, pulled: Pulled) -> None:
        code = _CODES[pulled.status]
        pull.request.note(code)
        if pulled.messages:
            out = self.counts.given(pull.group, pull.queue[0])
            out.add(pull.queue[1], pulled.messages, pulled.next_offset)
        stream(pull.request.call, _encoded(code, pulled))

    @serves("UpdateOffset")
    def update(self, request: GrpcRequest, asked: grpc.UpdateOffsetRequest) -> None:
        """Set the offset that a group reports, at most to the end of the queue."""
        group = self.groups.to_read(group_of(asked.group)).name
        queue = self._queue(asked.message_queue)
        if asked.offset < 0:
            raise RequestRefused("offset_illegal", "the lowest offset is 0", offset=asked.offset)
        told = self.telemetry.listener(request.client_id)
        self.offsets.report(told, (group, *queue), asked.offset)
        request.answer(grpc.UpdateOffsetResponse(status=ok()))

    @serves("GetOffset")
    def get(self, request: GrpcRequest, asked: grpc.GetOffsetRequest) -> None:
        """Answer how far a group has read a queue."""
        group = self.groups.to_read(group_of(asked.group)).name
        queue = self._queue(asked.message_queue)
        known = self.offsets.known((group, *queue), zero_if_recent=False)
        if known is None:
            raise RequestRefused(
                "offset_unknown", "the group has never read this queue", consumer_group=group
            )
        request.answer(grpc.GetOffsetResponse(status=ok(), offset=known))

    @serves("QueryOffset")
    def query(self, request: GrpcRequest, asked: grpc.QueryOffsetRequest) -> None:
        """Answer with a queue's first offset, its end, or the offset at a given time."""
        queue = self._queue(asked.message_queue)
        readable = self.queues.get(*queue)
        policy = asked.query_offset_policy
        if policy not in _POLICIES:
            raise RequestRefused(
                "number_out_of_range",
                field="query_offset_policy",
                value=policy,
                min=min(_POLICIES),
                max=max(_POLICIES),
            )
        offset = 0
        if readable is not None:
            if policy == GrpcOffsetPolicy.TIMESTAMP:
                offset = readable.offset_at(ms_of(asked.timestamp))
            else:
                offset = readable.end if policy == GrpcOffsetPolicy.END else readable.start
        self.offsets.reach.tell(self.telemetry.listener(request.client_id), *queue, offset)
        request.answer(grpc.QueryOffsetResponse(status=ok(), offset=offset))

    def _queue(self, named: grpc.MessageQueue) -> Queue:
        queue = (topic_of(named.topic), named.id)
        self.topics.to_read(*queue)
        return queue


def _encoded(code: GrpcCode, pulled: Pulled) -> Iterator[bytes]:
    """Yield the parts of an answer, in the order in which clients expect them."""
    status = grpc.Status(code=code, message=code.name)
    yield grpc.PullMessageResponse(status=status).SerializeToString()
    for record in pulled.messages:
        yield grpc.PullMessageResponse(message=told_message(record)).SerializeToString()
    yield grpc.PullMessageResponse(next_offset=pulled.next_offset).SerializeToString()
