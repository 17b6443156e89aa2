"""Messages to consumers: PULL_MESSAGE, answered at once or when there is something to tell.

A pull that finds nothing may wait.  It is tried again when its queue grows, and answered without a
message when its time is up.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import EXPRESSION_TAG, PullHeader, PullResponseHeader
from escrowmq.protocol.filter import TagFilter, parse_filter
from escrowmq.store.reader import Pulled, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.broker.broker import Broker
    from escrowmq.store.meta import Group

PULLED_MAX = 1_024
PULLED_BYTES_MAX = 256 * 1024
WAIT_MS_MAX = 60_000
WAITING_MAX = 100_000

_CODES = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.NO_MATCH: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.NOTHING_NEW: ResponseCode.PULL_NOT_FOUND,
    Status.BEHIND_START: ResponseCode.PULL_OFFSET_MOVED,
    Status.BEYOND_END: ResponseCode.PULL_OFFSET_MOVED,
}

Queue = tuple[str, int]
"""Topic and queue id."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A pull that waits for its queue to grow."""

    request: Request
    header: PullHeader
    wanted: TagFilter
    #: Up to here nothing was found.
    offset: int
    is_answered: bool = False


class Pulling:
    """Handles pulls, and keeps those that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[Queue, list[Waiting]] = {}
        #: Until when (the loop's clock), a number against ties, who.
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._number = count()
        #: How far the log was when the views were looked at.
        self._looked_at = 0

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
        }

    @property
    def waiting(self) -> int:
        """How many pulls wait."""
        return sum(map(len, self._waiting.values()))

    def pull(self, request: Request) -> None:
        """Answer a pull, or let it wait."""
        header = request.header(PullHeader)
        broker = self._broker
        group = broker.groups.to_read(header.consumer_group)
        broker.topics.to_read(header.topic, header.queue_id)
        wanted = self._wanted(header)
        self._check_model(group)
        if header.commits_offset and header.commit_offset >= 0:
            broker.meta.set_offset(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        pulled = self._look(header, wanted, header.queue_offset)
        may_wait = header.may_wait and header.wait_ms > 0
        if pulled.status is Status.NOTHING_NEW and may_wait and self._has_room:
            self._wait(Waiting(request, header, wanted, pulled.next_offset))
        else:
            _answer(request, pulled)

    def _wanted(self, header: PullHeader) -> TagFilter:
        check_expression_type(header.expression_type)
        if header.has_subscription:
            return parse_filter(header.subscription)
        group = self._broker.clients.consumers(header.consumer_group)
        known = group.subscriptions.get(header.topic) if group is not None else None
        if known is None:
            raise RequestRefused(
                "subscription_unknown",
                "send a heartbeat with the subscription first",
                consumer_group=header.consumer_group,
                topic=header.topic,
            )
        if known.version < header.subscription_version:
            raise RequestRefused(
                "subscription_outdated",
                "send a heartbeat with the new subscription first",
                consumer_group=header.consumer_group,
                topic=header.topic,
            )
        return parse_filter(known.expression)

    def _check_model(self, group: Group) -> None:
        if group.may_broadcast:
            return
        online = self._broker.clients.consumers(group.name)
        if online is not None and online.said.is_broadcast:
            raise RequestRefused(
                "group_forbidden", "its owner forbids broadcasts", consumer_group=group.name
            )

    def _look(self, header: PullHeader, wanted: TagFilter, offset: int) -> Pulled:
        pulled = self._broker.queues.pull(
            header.topic,
            header.queue_id,
            offset,
            count_max=min(max(header.messages_max, 1), PULLED_MAX),
            bytes_max=min(header.bytes_max or PULLED_BYTES_MAX, PULLED_BYTES_MAX),
            codes=wanted.codes,
        )
        if pulled.status is Status.NO_SUCH_QUEUE:
            # Nothing was ever sent to it.
            return Pulled(status=Status.BEYOND_END if offset else Status.NOTHING_NEW)
        return pulled

    # Those that wait.

    @property
    def _has_room(self) -> bool:
        # Answered ones stay until their time: that bounds both.
        return len(self._deadlines) < WAITING_MAX

    def _wait(self, waiting: Waiting) -> None:
        header = waiting.header
        wait_s = min(header.wait_ms, WAIT_MS_MAX) / 1_000
        until = asyncio.get_running_loop().time() + wait_s
        heapq.heappush(self._deadlines, (until, next(self._number), waiting))
        self._waiting.setdefault((header.topic, header.queue_id), []).append(waiting)

    def grown(self, numbers: Iterable[int]) -> None:
        """These queues have new messages."""
        for number in numbers:
            queue = self._broker.store.queues[number]
            self._try_all((queue.topic, queue.queue_id))

    def look_at_views(self) -> None:
        """Views may have new messages without a queue that has grown."""
        settled = self._broker.store.settled
        if settled != self._looked_at:
            self._looked_at = settled
            for topic in self._broker.queues.views:
                self._try_all((topic, 0))

    def _try_all(self, queue: Queue) -> None:
        for one in self._waiting.pop(queue, ()):
            self._try_again(one)

    def _try_again(self, waiting: Waiting) -> None:
        if not waiting.request.connection.is_open:
            waiting.is_answered = True
        elif not self._finish(waiting, may_wait=True):
            header = waiting.header
            self._waiting.setdefault((header.topic, header.queue_id), []).append(waiting)

    def _finish(self, waiting: Waiting, *, may_wait: bool) -> bool:
        """Answer a pull that waited; False if it may wait on."""
        try:
            pulled = self._look(waiting.header, waiting.wanted, waiting.offset)
        except Exception as error:  # noqa: BLE001 - one bad pull must not end the others
            waiting.request.decline(error)
        else:
            waiting.offset = pulled.next_offset
            if may_wait and pulled.status is Status.NOTHING_NEW:
                return False
            _answer(waiting.request, pulled)
        waiting.is_answered = True
        return True

    def give_up(self) -> None:
        """Answer those whose time is up."""
        now = asyncio.get_running_loop().time()
        while self._deadlines and self._deadlines[0][0] <= now:
            waiting = heapq.heappop(self._deadlines)[2]
            if waiting.is_answered:
                continue
            header = waiting.header
            queue = (header.topic, header.queue_id)
            self._waiting[queue].remove(waiting)
            if not self._waiting[queue]:
                del self._waiting[queue]
            self._finish(waiting, may_wait=False)


def check_expression_type(kind: str) -> None:
    """Refuse subscriptions that are not by tags."""
    if kind not in ("", EXPRESSION_TAG):
        raise RequestRefused("filter_unsupported", "subscribe by tags", kind=kind)


def _answer(request: Request, pulled: Pulled) -> None:
    header = PullResponseHeader(
        next_offset=pulled.next_offset, min_offset=pulled.start, max_offset=pulled.end
    )
    request.answer(
        _CODES[pulled.status],
        header=header,
        remark=pulled.status.value,
        body=b"".join(pulled.messages),
    )
