"""Requests of a consumer group's member to brokers: members, offsets, retries and locks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from escrowmq.client.config import Start
from escrowmq.client.handling import Handled, Outcome
from escrowmq.client.refusing import refuse_unless_done
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.admin_headers import ResetOffsetHeader
from escrowmq.protocol.bodies import (
    ConsumerListResponse,
    LockRequest,
    LockResponse,
    Queue,
    encode_body,
    read_body,
)
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import (
    ConsumerGroupHeader,
    OffsetResponseHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
)
from escrowmq.protocol.delay_levels import DELAY_LEVELS, DelayLevels
from escrowmq.protocol.headers import read_header

if TYPE_CHECKING:
    from escrowmq.client.member import Member
    from escrowmq.client.messages import Received
    from escrowmq.client.network import Place
    from escrowmq.protocol.headers import Header
    from escrowmq.protocol.remoting import Frame

RETRY_PREFIX = "%RETRY%"
_GIVE_UP = -1
#: RocketMQ's default levels. A broker with other levels waits as long as those say; brokers do not
#: report them.
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

    async def first_offset(self, place: Place, *, is_broadcast: bool) -> int:
        """Return the offset at which to start in a queue."""
        if not is_broadcast:
            header = QueryOffsetHeader(
                consumer_group=self._group,
                topic=place.topic,
                queue_id=place.queue_id,
                zero_if_none=False,
            )
            answer = await self._member.network.ask(
                place.address, RequestCode.QUERY_CONSUMER_OFFSET, header
            )
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                return read_header(OffsetResponseHeader, refuse_unless_done(answer).ext).offset
        if place.topic.startswith(RETRY_PREFIX):
            return await self.offset(place, RequestCode.GET_MIN_OFFSET)
        if self._start is Start.TIME:
            return await self.offset_at(place, self._start_at_ms)
        is_first = self._start is Start.FIRST
        code = RequestCode.GET_MIN_OFFSET if is_first else RequestCode.GET_MAX_OFFSET
        return await self.offset(place, code)

    async def offset(self, place: Place, code: int) -> int:
        """Return the lowest or the highest offset of a queue."""
        return await self._offset(
            place, code, QueueHeader(topic=place.topic, queue_id=place.queue_id)
        )

    async def offset_at(self, place: Place, at_ms: int) -> int:
        """Return the first offset that became visible at this time or later."""
        header = SearchOffsetHeader(topic=place.topic, queue_id=place.queue_id, stored_at_ms=at_ms)
        return await self._offset(place, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, place: Place, code: int, header: Header) -> int:
        answer = refuse_unless_done(await self._member.network.ask(place.address, code, header))
        return read_header(OffsetResponseHeader, answer.ext).offset

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
    def read_reset(frame: Frame) -> tuple[str, str]:
        """Return the group and the topic whose offsets were reset."""
        header = read_header(ResetOffsetHeader, frame.ext)
        return header.consumer_group, header.topic

    # Retries.

    async def give_back(
        self, place: Place, message: Received, handled: Handled, *, retries_max: int
    ) -> None:
        """Return a message to the broker, for a retry or as a dead letter."""
        is_given_up = handled.outcome is Outcome.GIVEN_UP
        header = SendBackHeader(
            log_offset=message.log_offset,
            consumer_group=self._group,
            delay_level=_GIVE_UP if is_given_up else _level(handled.after_ms),
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=retries_max,
        )
        connection = await self._member.network.connection(place.address)
        refuse_unless_done(await connection.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header))

    # Locks.

    async def lock(self, places: Iterable[Place]) -> set[Place]:
        """Lock queues, or renew their locks, for a minute; return those that we hold now."""
        locked: set[Place] = set()
        for address, there in _by_address(places).items():
            answer = await self._locking(address, there, RequestCode.LOCK_BATCH_MQ)
            taken = {
                (queue.topic, queue.broker_name, queue.queue_id)
                for queue in read_body(LockResponse, answer.body).queues
            }
            locked |= {one for one in there if (one.topic, one.broker_name, one.queue_id) in taken}
        return locked

    async def unlock(self, places: Iterable[Place]) -> None:
        """Release the locks."""
        for address, there in _by_address(places).items():
            await self._locking(address, there, RequestCode.UNLOCK_BATCH_MQ)

    async def _locking(self, address: str, places: list[Place], code: int) -> Frame:
        body = LockRequest(
            consumer_group=self._group,
            client_id=self._member.client_id,
            queues=tuple(
                Queue(broker_name=one.broker_name, queue_id=one.queue_id, topic=one.topic)
                for one in places
            ),
        )
        connection = await self._member.network.connection(address)
        return refuse_unless_done(await connection.ask(code, body=encode_body(body)))


def _by_address(places: Iterable[Place]) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for place in places:
        found.setdefault(place.address, []).append(place)
    return found


def _level(after_ms: int) -> int:
    """Return the shortest of RocketMQ's delay levels that is long enough; 0: the broker chooses."""
    if after_ms <= 0:
        return 0
    for level, wait_ms in enumerate(_LEVELS.waits_ms, start=1):
        if wait_ms >= after_ms:
            return level
    return _LEVELS.count
