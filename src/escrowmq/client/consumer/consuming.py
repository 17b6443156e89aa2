"""A member of a consumer group: it shares queues with the other members and reads its share.

Queues are reassigned when a member joins or leaves, when topics change, and every ``SHARE_S``. The
member finishes a queue before giving it up: it waits for running handlers and stores the group's
offset.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from escrowmq.client.config import ConsumerConfig
from escrowmq.client.consumer.consumer_log import ConsumerLog
from escrowmq.client.consumer.group_calls import GroupCalls
from escrowmq.client.consumer.queue_reader import QueueReader
from escrowmq.client.consumer.sharing import share
from escrowmq.client.messages.body_reading import MessageHandler
from escrowmq.client.messages.handling import Handled, HandlerOutcome, HandlerRunner, Left
from escrowmq.client.network.member import Member
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.message.properties import tags_code
from escrowmq.protocol.remoting.client_bodies import (
    MODEL_BROADCASTING,
    MODEL_CLUSTERING,
    ConsumerMembership,
    SubscriptionBody,
)
from escrowmq.protocol.remoting.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.client.messages.messages import Received
    from escrowmq.client.network.connection import BrokerConnection
    from escrowmq.client.network.routing import QueueAddress
    from escrowmq.protocol.remoting.frames import RemotingFrame

SHARE_S = 20.0
STORE_S = 5.0
LOCK_S = 20.0
#: Wait before an ordered message is handled again, and before a failed call or lock is repeated.
TRY_AGAIN_S = 1.0


class GroupMember:
    """One member of a group. Use it from one event loop only."""

    def __init__(self, servers: str | Sequence[str], group: str, config: ConsumerConfig) -> None:
        self.group = group
        self.config = config
        self.member = Member(servers, tls=config.tls, credentials=config.credentials)
        self.member.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = lambda *_: self._wake.set()
        self.member.handlers[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._told_of_reset
        self.calls = GroupCalls(self.member, group, config.start, config.start_at_ms)
        self._handlers = HandlerRunner(config.concurrency, config.handler_timeout_s)
        #: By topic: the tag expression, and the handler of its messages.
        self._subscribed: dict[str, tuple[str, MessageHandler]] = {}
        self._reading: dict[QueueAddress, QueueReader] = {}
        #: Held while queues are taken or released.
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reset: set[str] = set()
        #: Topics whose queues get new readers, which continue at the old readers' offsets.
        self._changed: set[str] = set()
        #: Topics in which a message waits because it has no handler here.
        self.unhandled: set[str] = set()
        #: Offsets of a broadcast consumer in queues that it no longer reads.
        self._left_at: dict[QueueAddress, int] = {}
        #: Version of the subscriptions; brokers replace an older version by a newer one.
        self._version = 0
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False
        self._log = ConsumerLog(group, is_broadcast=config.broadcast)

    # For callers.

    async def subscribe(self, topic: str, expression: str, handler: MessageHandler) -> None:
        """Subscribe a handler to a topic; if already started, wait for the brokers' answers."""
        self.add(topic, expression, handler)
        await self.announce()

    def add(self, topic: str, expression: str, handler: MessageHandler) -> None:
        """Add a subscription; ``expression`` is ``*`` or tags separated by ||."""
        parse_filter(expression)
        known = self._subscribed.get(topic)
        if known is not None and known[1] != handler:
            raise RequestRefused("already_subscribed", "one handler for a topic", topic=topic)
        if known is not None and known[0] != (expression or "*"):
            self._changed.add(topic)
        self._changed |= self.unhandled
        self.unhandled.clear()
        self._subscribed[topic] = (expression or "*", handler)
        self._version = max(self._version + 1, int(time.time() * 1_000))
        self.member.consuming[self.group] = self._membership()

    async def announce(self) -> None:
        """Send the subscriptions to the brokers, and start a reassignment of queues."""
        if self._is_started:
            await self.member.beat()
            self._wake.set()

    def announce_soon(self) -> None:
        """Start a task that announces the subscriptions, and do not wait for it."""
        announcing = self._loop.create_task(self.announce())
        self._tasks.add(announcing)
        announcing.add_done_callback(self._tasks.discard)

    async def unsubscribe(self, topic: str) -> None:
        """Stop handling the topic's messages here; unfinished ones are delivered again."""
        self._subscribed.pop(topic, None)
        self.member.consuming[self.group] = self._membership()
        async with self._changing:
            await self._let_topic_go(topic)
        await self.member.beat()

    async def start(self) -> None:
        """Join the group."""
        self._is_started = True
        self.member.consuming[self.group] = self._membership()
        await self.member.start()
        await self.member.beat()
        self._tasks |= {
            asyncio.ensure_future(self._share_for_ever()),
            asyncio.ensure_future(self._store_for_ever()),
        }
        if self.config.ordered:
            self._tasks.add(asyncio.ensure_future(self._lock_for_ever()))

    async def stop(self) -> None:
        """Take no more messages, wait for handlers, store offsets, and leave the group."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with self._changing:
            await asyncio.gather(*(self._let_go(place) for place in list(self._reading)))
        self._handlers.close()
        await self.member.close()

    @property
    def places(self) -> list[QueueAddress]:
        """The queues that this member reads now."""
        return list(self._reading)

    # Queue assignment.

    def _membership(self) -> ConsumerMembership:
        wanted = {topic: expression for topic, (expression, _) in self._subscribed.items()}
        if not self.config.broadcast:
            wanted[f"{RETRY_PREFIX}{self.group}"] = "*"
        return ConsumerMembership(
            group=self.group,
            said_model=MODEL_BROADCASTING if self.config.broadcast else MODEL_CLUSTERING,
            subscriptions=tuple(
                _subscription(topic, expression, self._version)
                for topic, expression in wanted.items()
            ),
        )

    def _told_of_reset(self, _connection: BrokerConnection, frame: RemotingFrame) -> None:
        """Have the topic's readers replaced: new ones start at the offsets that the broker has."""
        group, topic = self.calls.read_reset(frame)
        if group == self.group:
            self._reset.add(topic)
            self._wake.set()

    async def _share_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with self._changing:
                    await self._share()
            except EscrowError as error:
                self._log.call_failed("sharing_failed", error)
                await _wait(self._wake, TRY_AGAIN_S)
                continue
            await _wait(self._wake, SHARE_S)

    async def _share(self) -> None:
        while self._reset:
            await self._let_topic_go(self._reset.pop(), is_discarded=True)
        while self._changed:
            await self._let_topic_go(self._changed.pop())
        wanted: set[QueueAddress] = set()
        for subscription in self._membership().subscriptions:
            wanted.update(await self._mine(subscription.topic))
        await asyncio.gather(*(self._let_go(one) for one in self._reading.keys() - wanted))
        for place in sorted(wanted - self._reading.keys(), key=_in_order):
            await self._take(place)

    async def _mine(self, topic: str) -> list[QueueAddress]:
        queues = sorted(await self._readable(topic), key=_in_order)
        if self.config.broadcast or not queues:
            return queues
        members = await self.calls.client_ids(queues[0].address)
        return share(queues, sorted(members), self.member.client_id)

    async def _readable(self, topic: str) -> tuple[QueueAddress, ...]:
        """Return the queues of a topic that may be read; a topic that does not exist has none."""
        exists = False
        found: tuple[QueueAddress, ...] = ()
        try:
            route = await self.member.network.route(topic)
        except RequestRefused as refused:
            if refused.code != "topic_unknown":
                raise
        else:
            exists, found = not route.is_borrowed, route.readable
        if topic in self._subscribed:
            self._log.routed(topic, len(found), exists=exists)
        return found

    async def _take(self, place: QueueAddress) -> None:
        if self.config.ordered and not await self.calls.lock([place]):
            # Another member still holds the lock; try again soon.
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._wake.set)
            return
        expression, _ = self._handler_of(place.topic)
        offset = self._left_at.pop(place, None)
        if offset is None:
            offset = await self.calls.first_offset(place, is_broadcast=self.config.broadcast)
        reader = QueueReader(self.member.network, self.group, place, expression, self._log)
        reader.start(offset, self._deliver)
        self._reading[place] = reader

    async def _let_topic_go(self, topic: str, *, is_discarded: bool = False) -> None:
        for place in [one for one in self._reading if one.topic == topic]:
            self._reading[place].is_discarded |= is_discarded
            await self._let_go(place)

    async def _let_go(self, place: QueueAddress) -> None:
        reader = self._reading.pop(place)
        await reader.stop(self.config.stop_s)
        if self.config.broadcast and not reader.is_discarded:
            self._left_at[place] = reader.progress.committed
        await self._store(reader)
        if self.config.ordered:
            await self._unlock(place)

    async def _unlock(self, place: QueueAddress) -> None:
        try:
            await self.calls.unlock([place])
        except EscrowError as error:
            # The broker ends a lock that is not renewed.
            self._log.call_failed("not_unlocked", error, place)

    async def _store_for_ever(self) -> None:
        while True:
            await asyncio.sleep(STORE_S)
            await asyncio.gather(*map(self._store, list(self._reading.values())))

    async def _store(self, reader: QueueReader) -> None:
        if self.config.broadcast:
            return
        try:
            await reader.store_offset()
        except EscrowError as error:
            self._log.call_failed("offset_not_stored", error, reader.place)

    async def _lock_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            places = list(self._reading)
            try:
                kept = await self.calls.lock(places)
            except EscrowError as error:
                self._log.call_failed("locks_not_renewed", error)
                continue
            async with self._changing:
                for place in [one for one in places if one not in kept and one in self._reading]:
                    await self._let_go(place)

    # Messages.

    def _handler_of(self, topic: str) -> tuple[str, MessageHandler | None]:
        return self._subscribed.get(topic, ("*", None))

    async def _deliver(self, reader: QueueReader, message: Received) -> None:
        """Handle a message; return when the next message of the queue may be taken."""
        if self.config.ordered:
            # Shielded: a release of the queue cancels this task, but waits for the handler.
            await asyncio.shield(reader.begin(self._handle_in_order(reader, message)))
            return
        await self._handlers.admit()
        reader.begin(self._handle_once(reader, message))

    async def _handle_once(self, reader: QueueReader, message: Received) -> None:
        handled = await self._run(message)
        if handled.outcome is HandlerOutcome.LEFT:
            return
        if handled.outcome is not HandlerOutcome.DONE and not self.config.broadcast:
            await self._give_back(reader, message, handled)
        elif handled.outcome is not HandlerOutcome.DONE:
            self._log.gave_up(message, handled)
        reader.finish(message)

    async def _run(self, message: Received) -> Handled:
        """Run the handler in the slot that ``admit`` has reserved."""
        _, handler = self._handler_of(message.topic)
        if handler is None:
            self.unhandled.add(message.queue_topic)
        return await self._handlers.handle(handler or _UNWANTED, message)

    async def _give_back(self, reader: QueueReader, message: Received, handled: Handled) -> None:
        """Return the message to the broker, and retry until the broker has stored it."""
        while True:
            try:
                await self.calls.give_back(
                    reader.place, message, handled, retries_max=self.config.retries_max
                )
            except EscrowError as error:
                self._log.call_failed(
                    "not_given_back", error, reader.place, message_id=message.message_id
                )
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                break
        if handled.outcome is HandlerOutcome.GIVEN_UP or message.retries >= self.config.retries_max:
            self._log.gave_up(message, handled)

    async def _handle_in_order(self, reader: QueueReader, message: Received) -> None:
        """Handle a message here until it is done or given up; the queue waits for it."""
        for retry in range(self.config.retries_max + 1):
            await self._handlers.admit()
            handled = await self._run(message)
            if handled.outcome is HandlerOutcome.LEFT:
                return
            if handled.outcome is HandlerOutcome.DONE:
                break
            if handled.outcome is HandlerOutcome.GIVEN_UP or retry == self.config.retries_max:
                given_up = Handled(HandlerOutcome.GIVEN_UP, why=handled.why)
                await self._give_back(reader, message, given_up)
                break
            await asyncio.sleep(handled.after_ms / 1_000 or TRY_AGAIN_S)
        reader.finish(message)


def _unwanted(_message: Received) -> None:
    """Leave a retried message whose topic has no handler here, until a handler subscribes."""
    raise Left


_UNWANTED = MessageHandler(_unwanted)


def _subscription(topic: str, expression: str, version: int) -> SubscriptionBody:
    tags = () if expression == "*" else tuple(part.strip() for part in expression.split("||"))
    return SubscriptionBody(
        topic=topic,
        expression=expression,
        version=version,
        tags=tags,
        tags_codes=tuple(tags_code(tag) for tag in tags),
    )


def _in_order(place: QueueAddress) -> tuple[str, str, int]:
    return place.topic, place.broker_name, place.queue_id


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
