"""Reader of one queue: it pulls messages and delivers them; they finish in any order.

At most the messages of one pull wait here for delivery. The stored offset of the group is that of
the first unfinished message, so after a crash the unfinished messages are delivered again and none
is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.client.consumer.sharing import QueueProgress
from escrowmq.client.messages.messages import received
from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.client.network.trying import kept
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    PullHeader,
    PullResponseHeader,
    UpdateOffsetHeader,
)
from escrowmq.protocol.remoting.headers import read_header

if TYPE_CHECKING:
    from escrowmq.client.consumer.consumer_log import ConsumerLog
    from escrowmq.client.messages.messages import Received
    from escrowmq.client.network.routing import Network, QueueAddress

log = event_log(__name__)

PULLED_MAX = 32
#: How long the broker may hold a pull that finds nothing, and the timeout of its response.
WAIT_MS = 15_000
ANSWER_S = 30.0
RETRY_S = 1.0
#: Number of unfinished messages of one queue at which the reader stops pulling.
OPEN_MAX = 1_000

_MAY_WAIT = 0x2
_HAS_SUBSCRIPTION = 0x4

Deliver = Callable[["QueueReader", "Received"], Awaitable[None]]
"""Takes a message; returns when the next one may be taken."""


@dataclass(eq=False)
class QueueReader:
    """Reader of one queue; it runs from ``start`` to ``stop``."""

    _network: Network
    _group: str
    place: QueueAddress
    _expression: str
    _log: ConsumerLog

    def __post_init__(self) -> None:
        self._tags = _tags_of(self._expression)
        self.progress = QueueProgress(0)
        self._stored = -1
        self._task: asyncio.Task[None] | None = None
        #: Tasks of the messages in handlers.
        self._handling: set[asyncio.Task[None]] = set()
        #: Whether the group's offset was reset: then this reader must not store its own.
        self.is_discarded = False

    def start(self, offset: int, deliver: Deliver) -> None:
        """Start to read at this offset."""
        self.progress = QueueProgress(offset)
        self._task = asyncio.ensure_future(self._run(deliver))

    def begin(self, handling: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Handle a message concurrently with others; ``stop`` waits for it."""
        return kept(self._handling, handling)

    async def stop(self, wait_s: float) -> None:
        """Take no more messages, and wait up to ``wait_s`` for handlers."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._handling:
            # Messages that are not done by then are delivered again.
            _, late = await asyncio.wait(self._handling, timeout=wait_s)
            for task in late:
                task.cancel()

    async def _run(self, deliver: Deliver) -> None:
        while True:
            if self.progress.open >= OPEN_MAX:
                # Handlers are behind; pulling more would only grow the backlog here.
                await asyncio.sleep(RETRY_S)
                continue
            try:
                messages, next_offset = await self._pull()
            except EscrowError as error:
                self._log.call_failed("pull_failed", error, self.place)
                self._network.forget(self.place.topic)
                await asyncio.sleep(RETRY_S)
                continue
            for message in messages:
                self.progress.next_offset = message.queue_offset + 1
                if self._tags and message.tag not in self._tags:
                    continue
                self.progress.take(message.queue_offset)
                await deliver(self, message)
            if next_offset < self.progress.next_offset and self._handling:
                # The group was moved back. Other messages may get the same offsets, and an old
                # handler must not mark them done.
                await asyncio.wait(self._handling)
            self.progress.go_on(next_offset)

    async def _pull(self) -> tuple[list[Received], int]:
        header = PullHeader(
            consumer_group=self._group,
            topic=self.place.topic,
            queue_id=self.place.queue_id,
            queue_offset=self.progress.next_offset,
            messages_max=PULLED_MAX,
            sys_flag=_MAY_WAIT | _HAS_SUBSCRIPTION,
            commit_offset=0,
            wait_ms=WAIT_MS,
            subscription=self._expression,
            subscription_version=0,
        )
        connection = await self._network.connection(self.place.address)
        answer = await connection.ask(RequestCode.PULL_MESSAGE, header, timeout_s=ANSWER_S)
        if answer.code not in _PULLED:
            refuse_unless_done(answer)
        next_offset = read_header(PullResponseHeader, answer.ext).next_offset
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            facts = {"queue_id": self.place.queue_id, "address": self.place.address}
            facts |= {"group": self._group, "topic": self.place.topic, "to": next_offset}
            log.warning("offset_moved", extra=facts)
        stored = decode_many(answer.body) if answer.code == ResponseCode.SUCCESS else []
        return [received(one, self.place.broker_name) for one in stored], next_offset

    def finish(self, message: Received) -> None:
        """Mark a message as done."""
        self.progress.finish(message.queue_offset)

    async def store_offset(self) -> None:
        """Store the group's offset at the broker, if it has changed."""
        offset = self.progress.committed
        if offset == self._stored or self.is_discarded:
            return
        header = UpdateOffsetHeader(
            consumer_group=self._group,
            topic=self.place.topic,
            queue_id=self.place.queue_id,
            commit_offset=offset,
        )
        await self._network.call(self.place.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        self._stored = offset


_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def _tags_of(expression: str) -> frozenset[str]:
    """Return the tags to compare here: brokers filter by a hash, which two tags may share."""
    if expression in ("", "*"):
        return frozenset()
    return frozenset(part.strip() for part in expression.split("||"))
