"""Delivery to consumers: PULL_MESSAGE, answered at once or after a long poll.

A pull that finds nothing may wait. The broker tries it again when its queue grows, and answers it
without a message when its time is up. A waiting pull keeps only what the answer needs of its frame,
and is dropped with its connection.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import msgspec

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.pop.places import PopPlaces
from escrowmq.broker.state.client_links import ClientLink
from escrowmq.broker.state.clients import Clients
from escrowmq.broker.state.counting import BrokerCounts, Out
from escrowmq.broker.state.expiring import Uses
from escrowmq.broker.state.group_offsets import GroupOffsets
from escrowmq.broker.state.groups import Groups
from escrowmq.broker.state.long_polls import LongPolls, Queue
from escrowmq.broker.state.queues import Queues
from escrowmq.broker.state.reach import Reach, Reached, note
from escrowmq.broker.state.topics import Topics
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.filter import TagCodes, parse_filter
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    EXPRESSION_TAG,
    PullHeader,
    PullResponseHeader,
)
from escrowmq.protocol.remoting.templates import encode_found
from escrowmq.store.meta.meta import Group
from escrowmq.store.reading.reader import Pulled, ReadStatus

PULLED_MAX = 1_024
PULLED_BYTES_MAX = 256 * 1024

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCH: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NOTHING_NEW: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.BEHIND_START: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.BEYOND_END: ResponseCode.PULL_OFFSET_MOVED,
}


@dataclass(slots=True, eq=False)
class WaitingPull:
    """A pull that waits for its queue to grow."""

    request: Request
    header: PullHeader
    wanted: TagCodes
    #: Counts the messages that the pull's group gets.
    out: Out
    #: Holds how far its group has come.
    reached: Reached
    group: str
    #: The next try reads from here; earlier tries found no message for the pull before this offset.
    offset: int
    #: Whether the group was paused when the pull came. Then nothing checked whether its offset is
    #: from another history of the store.
    is_paused: bool = False
    #: Its topic was deleted, and may have been created again since.
    is_topic_gone: bool = False
    #: The tick at which it times out, and whether that has come.
    tick: int = 0
    is_over: bool = False

    @property
    def queues(self) -> tuple[Queue]:
        """The queue that it waits for."""
        return ((self.header.topic, self.header.queue_id),)

    @property
    def owner(self) -> ClientConnection:
        """The connection that it came from."""
        return self.request.connection


@dataclass(eq=False)
class Pulling:
    """Handles pulls, and keeps those that wait."""

    groups: Groups
    topics: Topics
    clients: Clients[ClientLink]
    queues: Queues
    offsets: GroupOffsets
    places: PopPlaces
    reach: Reach
    uses: Uses
    counts: BrokerCounts
    polls: LongPolls[WaitingPull] = field(init=False)
    #: Durable end of the log when the views were last looked at.
    _looked_at: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.polls = LongPolls(self._finish)

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, request: Request) -> None:
        """Answer a pull, or let it wait."""
        header = request.header(PullHeader)
        group = self.groups.to_read(header.consumer_group)
        self.topics.to_read(header.topic, header.queue_id)
        self.uses.note(header.consumer_group, header.topic)
        wanted = self._wanted(header)
        self._check_model(group)
        popped_to = self.places.pulled(header.consumer_group, header.topic, header.queue_id)
        if header.commits_offset and header.commit_offset >= 0:
            self.offsets.commit(
                request.connection,
                (header.consumer_group, header.topic, header.queue_id),
                header.commit_offset,
            )
        out = self.counts.given(header.consumer_group, header.topic)
        reached = self.reach.of(header.consumer_group, header.topic)
        if header.consumer_group in self.groups.paused:
            pulled = self._nothing(header, header.queue_offset)
        else:
            pulled = (
                self._moved(request, header)
                or self._moved_back(header, popped_to)
                or self._look(header, wanted, header.queue_offset)
            )
            note(reached, header.queue_id, pulled.next_offset)
        may_wait = header.may_wait and header.wait_ms > 0
        if (
            pulled.status is ReadStatus.NOTHING_NEW
            and may_wait
            and self.polls.has_room(request.connection)
        ):
            self._wait(request, header, wanted, out, reached, pulled.next_offset)
        else:
            _answer(request, pulled, out, header.queue_id)

    def _moved(self, request: Request, header: PullHeader) -> Pulled | None:
        """Return the answer to a consumer from another history of the store, or None."""
        offset = header.queue_offset
        base = self.reach.base_if_foreign(
            request.connection, header.consumer_group, header.topic, header.queue_id, offset
        )
        if base is None or header.topic in self.queues.views:
            return None
        queue = self.queues.get(header.topic, header.queue_id)
        start, end = (0, 0) if queue is None else (queue.start, queue.end)
        at = min(max(base, start), end)
        return Pulled(status=ReadStatus.BEYOND_END, next_offset=at, start=start, end=end)

    def _moved_back(self, header: PullHeader, popped_to: int | None) -> Pulled | None:
        """Return the answer to a group that popped until now, only to below the pull's offset."""
        if popped_to is None or header.queue_offset <= popped_to:
            return None
        nothing = self._nothing(header, popped_to)
        return msgspec.structs.replace(nothing, status=ReadStatus.BEYOND_END)

    def _wanted(self, header: PullHeader) -> TagCodes:
        check_expression_type(header.expression_type)
        if header.has_subscription:
            return parse_filter(header.subscription)
        group = self.clients.consumers(header.consumer_group)
        known = group.subscriptions.get(header.topic) if group is not None else None
        names = {"consumer_group": header.consumer_group, "topic": header.topic}
        if known is None:
            advice = "send a heartbeat with the subscription first"
            raise RequestRefused("subscription_unknown", advice, **names)
        if known.version < header.subscription_version:
            advice = "send a heartbeat with the new subscription first"
            raise RequestRefused("subscription_outdated", advice, **names)
        return parse_filter(known.expression)

    def _check_model(self, group: Group) -> None:
        if not group.may_broadcast and self.clients.is_broadcast(group.name):
            raise RequestRefused(
                "group_forbidden", "its owner forbids broadcasts", consumer_group=group.name
            )

    def _look(self, header: PullHeader, wanted: TagCodes, offset: int) -> Pulled:
        pulled = self.queues.pull(
            header.topic,
            header.queue_id,
            offset,
            count_max=min(max(header.messages_max, 1), PULLED_MAX),
            bytes_max=min(header.bytes_max or PULLED_BYTES_MAX, PULLED_BYTES_MAX),
            codes=wanted,
        )
        if pulled.status is ReadStatus.NO_SUCH_QUEUE:
            # No message was ever sent to the queue.
            return Pulled(status=ReadStatus.BEYOND_END if offset else ReadStatus.NOTHING_NEW)
        return pulled

    def _nothing(self, header: PullHeader, offset: int) -> Pulled:
        """Return the answer to a paused group: no message, and the same offset."""
        queue = self.queues.get(header.topic, header.queue_id)
        start, end = (0, 0) if queue is None else (queue.start, queue.end)
        return Pulled(status=ReadStatus.NOTHING_NEW, next_offset=offset, start=start, end=end)

    # Waiting pulls.

    def _wait(  # noqa: PLR0917 - called in one place only
        self,
        request: Request,
        header: PullHeader,
        wanted: TagCodes,
        out: Out,
        reached: Reached,
        offset: int,
    ) -> None:
        # A frame may have megabytes that are not needed again.
        request.frame = msgspec.structs.replace(request.frame, ext={}, body=b"", remark="")
        # Waiting pulls of a group share one string for its name.
        group = sys.intern(header.consumer_group)
        header = msgspec.structs.replace(header, consumer_group="", subscription="")
        request.has_waited = True
        is_paused = group in self.groups.paused
        waiting = WaitingPull(request, header, wanted, out, reached, group, offset, is_paused)
        self.polls.add(waiting, header.wait_ms)

    def forget(self, topic: str) -> None:
        """Answer the pulls that wait for a deleted topic, a few at a time."""
        gone = self.polls.of_topic(topic)
        for waiting in gone:
            waiting.is_topic_gone = True
        self.polls.try_again(gone)

    def resumed(self, group: str) -> None:
        """Try the waiting pulls of a group that is served again."""
        self.polls.try_again([one for one in self.polls if one.group == group])

    def look_at_views(self, durable_end: int) -> None:
        """Try the pulls of views if the log grew: views have no queue that reports growth."""
        if durable_end != self._looked_at:
            self._looked_at = durable_end
            self.polls.grown((topic, 0) for topic in self.queues.views)

    def _finish(self, waiting: WaitingPull) -> bool:
        """Answer a waiting pull, unless it may continue to wait; return whether it was answered."""
        may_wait = not waiting.is_over
        try:
            _refuse_if_gone(waiting)
            is_paused = waiting.group in self.groups.paused
            if is_paused or waiting.is_paused:
                # A pull that came during the pause is answered after it; the client pulls again.
                may_wait = may_wait and is_paused
                pulled = self._nothing(waiting.header, waiting.offset)
            else:
                pulled = self._look(waiting.header, waiting.wanted, waiting.offset)
        except Exception as error:  # noqa: BLE001 - one bad pull must not end the others
            waiting.request.decline(error)
        else:
            waiting.offset = pulled.next_offset
            if not waiting.is_paused:
                note(waiting.reached, waiting.header.queue_id, pulled.next_offset)
            if may_wait and pulled.status is ReadStatus.NOTHING_NEW:
                return False
            _answer(waiting.request, pulled, waiting.out, waiting.header.queue_id)
        return True


def _refuse_if_gone(waiting: WaitingPull) -> None:
    if waiting.is_topic_gone:
        raise RequestRefused("topic_unknown", "it was deleted", topic=waiting.header.topic)


def check_expression_type(kind: str) -> None:
    """Refuse subscriptions that do not filter by tags."""
    if kind not in ("", EXPRESSION_TAG):
        raise RequestRefused("filter_unsupported", "subscribe by tags", kind=kind)


def _answer(request: Request, pulled: Pulled, out: Out, queue_id: int) -> None:
    if pulled.status is ReadStatus.FOUND and not request.frame.is_one_way:
        out.add(queue_id, pulled.messages, pulled.next_offset)
        request.note(ResponseCode.SUCCESS)
        request.connection.send(
            encode_found(
                request.frame, pulled.next_offset, pulled.start, pulled.end, pulled.messages
            )
        )
        return
    header = PullResponseHeader(
        next_offset=pulled.next_offset, min_offset=pulled.start, max_offset=pulled.end
    )
    request.answer(
        _CODES[pulled.status],
        header=header,
        remark=pulled.status.value,
        body=b"".join(pulled.messages),
    )
