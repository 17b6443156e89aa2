"""Requests of a consumer group's member to brokers: members, offsets, retries and locks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from escrowmq.client.config import Start
from escrowmq.client.messages.handling import Handled, HandlerOutcome
from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX
from escrowmq.protocol.message.delay_levels import DELAY_LEVELS, DelayLevels
from escrowmq.protocol.remoting.admin_headers import ResetOffsetHeader
from escrowmq.protocol.remoting.bodies import (
    ConsumerListResponse,
    LockRequest,
    LockResponse,
    QueueName,
    encode_body,
    read_body,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    ConsumerGroupHeader,
    OffsetResponseHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
)
from escrowmq.protocol.remoting.headers import read_header

if TYPE_CHECKING:
    from escrowmq.client.messages.messages import Received
    from escrowmq.client.network.member import Member
    from escrowmq.client.network.routing import QueueAddress
    from escrowmq.protocol.remoting.frames import RemotingFrame
    from escrowmq.protocol.remoting.headers import Header

#: The request for the offset at which a group starts.
_START_CODES = {
    Start.FIRST: RequestCode.GET_MIN_OFFSET,
    Start.LAST: RequestCode.GET_MAX_OFFSET,
    Start.TIME: RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
_GIVE_UP = -1
#: RocketMQ's default levels. A broker with other levels waits as its own say, and does not report
#: them.
_LEVELS = DelayLevels.parse(DELAY_LEVELS)


class GroupCalls:
    """Requests of one member. Use them from one event loop only."""

    def __init__(self, member: Member, group: str, start: Start, start_at_ms: int) -> None:
        self._member = member
        self._group = group
        self._start = Start(start)
        self._start_at_ms = start_at_ms

    async def client_ids(self, address: str) -> tuple[str, ...]:
        """Return the ids of the group's members that a broker knows."""
        answer = await self._member.network.ask(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupHeader(consumer_group=self._group),
        )
        if answer.code != ResponseCode.SUCCESS:
            return ()
        return read_body(ConsumerListResponse, answer.body).client_ids

    # Offsets.

    async def first_offset(self, place: QueueAddress, *, is_broadcast: bool) -> int:
        """Return the offset at which to start in a queue."""
        if not is_broadcast:
            stored = QueryOffsetHeader(
                consumer_group=self._group,
                topic=place.topic,
                queue_id=place.queue_id,
                zero_if_none=False,
            )
            answer = await self._member.network.ask(
                place.address, RequestCode.QUERY_CONSUMER_OFFSET, stored
            )
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                return read_header(OffsetResponseHeader, refuse_unless_done(answer).ext).offset
        start = Start.FIRST if place.topic.startswith(RETRY_PREFIX) else self._start
        header: Header = QueueHeader(topic=place.topic, queue_id=place.queue_id)
        if start is Start.TIME:
            header = SearchOffsetHeader(
                topic=place.topic, queue_id=place.queue_id, stored_at_ms=self._start_at_ms
            )
        answer = await self._member.network.ask(place.address, _START_CODES[start], header)
        return read_header(OffsetResponseHeader, refuse_unless_done(answer).ext).offset

    async def reset(
        self, topic: str, *, at_ms: int = -1, offset: int | None = None, queue_id: int = -1
    ) -> None:
        """Move the whole group to a time or an offset, including members that are offline."""
        route = await self._member.network.route(topic)
        if not route.readable:
            raise RequestRefused("topic_unknown", "nothing was ever sent to it", topic=topic)
        header = ResetOffsetHeader(
            consumer_group=self._group,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            stored_at_ms=at_ms,
            is_forced=True,
        )
        for address in sorted({place.address for place in route.readable}):
            refuse_unless_done(
                await self._member.network.ask(
                    address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header
                )
            )

    @staticmethod
    def read_reset(frame: RemotingFrame) -> tuple[str, str]:
        """Return the group and the topic whose offsets were reset."""
        header = read_header(ResetOffsetHeader, frame.ext)
        return header.consumer_group, header.topic

    # Retries.

    async def give_back(
        self, place: QueueAddress, message: Received, handled: Handled, *, retries_max: int
    ) -> None:
        """Return a message to the broker, for a retry or as a dead letter."""
        is_given_up = handled.outcome is HandlerOutcome.GIVEN_UP
        header = SendBackHeader(
            log_offset=message.log_offset,
            consumer_group=self._group,
            delay_level=_GIVE_UP if is_given_up else _level(handled.after_ms),
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=retries_max,
        )
        await self._member.network.call(place.address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # Locks.

    async def lock(self, places: Iterable[QueueAddress]) -> set[QueueAddress]:
        """Lock queues, or renew their locks, for a minute; return those that we hold now."""
        locked: set[QueueAddress] = set()
        for address, there in _by_address(places).items():
            answer = await self._locking(address, there, RequestCode.LOCK_BATCH_MQ)
            taken = {
                (queue.topic, queue.broker_name, queue.queue_id)
                for queue in read_body(LockResponse, answer.body).queues
            }
            locked |= {one for one in there if (one.topic, one.broker_name, one.queue_id) in taken}
        return locked

    async def unlock(self, places: Iterable[QueueAddress]) -> None:
        """Release the locks of these queues."""
        for address, there in _by_address(places).items():
            await self._locking(address, there, RequestCode.UNLOCK_BATCH_MQ)

    async def _locking(self, address: str, places: list[QueueAddress], code: int) -> RemotingFrame:
        body = LockRequest(
            consumer_group=self._group,
            client_id=self._member.client_id,
            queues=tuple(
                QueueName(broker_name=one.broker_name, queue_id=one.queue_id, topic=one.topic)
                for one in places
            ),
        )
        return await self._member.network.call(address, code, body=encode_body(body))


def _by_address(places: Iterable[QueueAddress]) -> dict[str, list[QueueAddress]]:
    found: dict[str, list[QueueAddress]] = {}
    for place in places:
        found.setdefault(place.address, []).append(place)
    return found


def _level(after_ms: int) -> int:
    """Return the shortest delay level that is long enough; 0 lets the broker choose the wait."""
    if after_ms <= 0:
        return 0
    for level, wait_ms in enumerate(_LEVELS.waits_ms, start=1):
        if wait_ms >= after_ms:
            return level
    return _LEVELS.count
