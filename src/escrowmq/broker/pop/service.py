"""The pop model for every wire protocol: receive, acknowledge, change the invisible time, give up.

The protocols call four methods; none of them blocks, and ``tell`` is called exactly once unless
``receive``, ``acknowledge`` or ``dead_letter`` raises instead:

- ``receive(wanted, tell, owner)``: ``tell`` gets a ``ReceivedBatch``, or an error. It waits up to
  ``wanted.wait_ms`` for a message; ``polls.drop(owner)`` ends the wait of a closed connection.
- ``acknowledge(group, receipts, tell, owner)``: ``tell`` gets one ``AckOutcome`` per receipt once
  the acknowledgements are durable, or an error.
- ``change_invisible(receipt, ms)`` returns the new receipt; the old one is stale.
- ``dead_letter(receipt, tell, owner)``: ``tell`` gets None once the dead letter is durable.

``receive`` raises ``CreateFirst`` if the group does not exist yet and may be created, and
RequestRefused if the group or the topic may not be read. ``owner`` is any hashable that stands for
a connection; the writer and the long polls are fair between owners. A retry is a message that is
visible again, with the next attempt number; no copy is stored. After the group's last attempt the
broker makes the message a dead letter. ``retry_delay_ms`` gives the delay that the group's policy
has for an attempt, for clients that ask for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.pop import receipts as kinds
from escrowmq.broker.pop.alarms import Alarms
from escrowmq.broker.pop.dead_letters import DeadLetters, Grave
from escrowmq.broker.pop.deliveries import Deliveries
from escrowmq.broker.pop.receipts import AckOutcome, Receipt, Receive, ReceivedBatch, ReceiveStatus
from escrowmq.broker.pop.taking import PopTaking, Took
from escrowmq.broker.state.long_polls import LongPolls, Queue
from escrowmq.broker.write.guard import guarded
from escrowmq.broker.write.inbox import error_of
from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS
from escrowmq.transaction.commands import Decision
from escrowmq.transaction.pop_commands import Acknowledge
from escrowmq.transaction.records import NEVER

if TYPE_CHECKING:
    from escrowmq.broker.pop.flights import QueueFlights
    from escrowmq.broker.pop.places import PopPlaces
    from escrowmq.broker.state.expiring import Uses
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.writer import Writer
    from escrowmq.model.catalog import Group
    from escrowmq.store.store import Store

log = event_log(__name__)

LOOK_MS = 1_000
"""How often skipped messages are recorded as acknowledged, and messages in flight counted."""

IN_FLIGHT_MAX = 2_000_000
"""Messages in flight to all groups together."""

SKIPS_MAX = 256
"""Queues whose skipped messages are recorded at a time."""

Tell = Callable[[ReceivedBatch | BaseException], None]
TellAcks = Callable[[list[AckOutcome] | BaseException], None]
TellDone = Callable[[BaseException | None], None]


@dataclass(slots=True, eq=False)
class WaitingPop:
    """A request for messages that waits."""

    wanted: Receive
    tell: Tell
    owner: Hashable
    queues: tuple[Queue, ...]
    tick: int = 0
    is_over: bool = False
    #: Its topic was deleted, and may have been created again since.
    is_topic_gone: bool = False


@dataclass(eq=False)
class PopService:
    """All pop consumers of a broker. Use it from one event loop only."""

    store: Store
    writer: Writer
    clock: BrokerClock
    groups: Groups
    topics: Topics
    uses: Uses
    places: PopPlaces
    taking: PopTaking
    deliveries: Deliveries
    dead_letters: DeadLetters
    polls: LongPolls[WaitingPop] = field(init=False)
    _alarms: Alarms = field(default_factory=Alarms, init=False)
    #: Groups and queue numbers with skipped messages that are not yet recorded.
    _skipping: dict[tuple[str, int], None] = field(default_factory=dict, init=False)
    _look_at_ms: int = field(default=0, init=False)
    #: Messages delivered again, by group and topic.
    redelivered: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.polls = LongPolls(self._finish)

    # Receiving.

    def receive(self, wanted: Receive, tell: Tell, owner: Hashable = None) -> None:
        """Deliver messages now, or as soon as there are some."""
        wanted = self._checked(wanted)
        again = self._ready(wanted, owner)
        if again is not None:
            again(lambda error: self._received_later(wanted, tell, owner, error))
            return
        if wanted.tags is not None and self.polls.is_behind:
            # A filter may examine many messages, so this request waits behind those that wait.
            received = ReceivedBatch(status=ReceiveStatus.EMPTY, has_more=True)
        else:
            received = self._look(wanted)
        may_wait = wanted.wait_ms > 0 or received.has_more
        if received.status is not ReceiveStatus.EMPTY or not may_wait:
            tell(received)
        elif not self.polls.has_room(owner):
            tell(ReceivedBatch(status=ReceiveStatus.FULL))
        else:
            self._wait(wanted, tell, owner, has_more=received.has_more)

    def _wait(self, wanted: Receive, tell: Tell, owner: Hashable, *, has_more: bool) -> None:
        queues = tuple((wanted.topic, queue_id) for queue_id in self._queue_ids(wanted))
        poll = WaitingPop(wanted, tell, owner, queues)
        self.polls.add(poll, wanted.wait_ms)
        if has_more:
            self.polls.try_again([poll])

    def _received_later(
        self, wanted: Receive, tell: Tell, owner: Hashable, error: BaseException | None
    ) -> None:
        if error is not None:
            tell(error)
        else:
            guarded(tell, self.receive, wanted, tell, owner)

    def _checked(self, wanted: Receive) -> Receive:
        group = self.groups.to_read(wanted.group)
        if wanted.topic in SYSTEM_TOPICS:
            raise RequestRefused("topic_of_system", "pull it", topic=wanted.topic)
        self.topics.to_read(wanted.topic, max(wanted.queue_id, 0))
        count = wanted.count_max
        if not 1 <= count <= kinds.COUNT_MAX:
            text = f"ask for 1 to {kinds.COUNT_MAX} messages"
            raise RequestRefused("pop_count_illegal", text, count=count)
        check_invisible(wanted.invisible_ms)
        self.uses.note(wanted.group, wanted.topic)
        return msgspec.structs.replace(wanted, is_fifo=wanted.is_fifo or group.is_ordered)

    def _queue_ids(self, wanted: Receive) -> Sequence[int]:
        if wanted.queue_id >= 0:
            return (wanted.queue_id,)
        topic = self.topics.get(wanted.topic)
        return range(0 if topic is None else topic.read_queue_count)

    def _ready(
        self, wanted: Receive, owner: Hashable
    ) -> Callable[[Callable[[BaseException | None], None]], None] | None:
        if wanted.is_question:
            # A question must not change how the group reads.
            return None
        return self.places.ready(
            wanted.group,
            wanted.topic,
            self._queue_ids(wanted),
            at_end=wanted.starts_at_end,
            owner=owner,
        )

    def _look(self, wanted: Receive) -> ReceivedBatch:
        """Deliver the messages that are available now, without waiting."""
        if wanted.group in self.groups.paused:
            return ReceivedBatch(status=ReceiveStatus.EMPTY)
        group = self.groups.named(wanted.group)
        now_ms = self.clock.now_ms()
        if wanted.is_question:
            is_there = self.taking.has_any(wanted, self._queue_ids(wanted), now_ms)
            return ReceivedBatch(status=ReceiveStatus.FOUND if is_there else ReceiveStatus.EMPTY)
        took = self.taking.take(wanted, group, self._queue_ids(wanted), now_ms)
        self._note(wanted, took, now_ms)
        if took.messages:
            return ReceivedBatch(
                status=ReceiveStatus.FOUND,
                messages=took.messages,
                popped_at_ms=now_ms,
                rest=took.rest,
            )
        if took.is_full:
            return ReceivedBatch(status=ReceiveStatus.FULL)
        return ReceivedBatch(status=ReceiveStatus.EMPTY, has_more=took.has_more)

    def _note(self, wanted: Receive, took: Took, now_ms: int) -> None:
        group, topic = wanted.group, wanted.topic
        if took.again_count:
            self.redelivered[group, topic] += took.again_count
        for number, flights in took.touched:
            self._alarms.set(group, number, now_ms + wanted.invisible_ms)
            if flights.skipped:
                self._skipping[group, number] = None
        for grave in took.exhausted:
            guarded(_log_failure, self._bury, grave, _log_failure)

    def _bury(self, grave: Grave, tell: TellDone, owner: Hashable = None) -> None:
        def buried(error: BaseException | None) -> None:
            tell(error)
            # In a FIFO queue, the messages behind this one were held back until now.
            self.polls.grown([(grave.topic, grave.queue_id)])

        self.dead_letters.bury(grave, buried, owner)

    def _finish(self, poll: WaitingPop) -> bool:
        """Answer a waiting request unless it may wait longer; return whether it is answered."""
        topic = poll.wanted.topic
        if poll.is_topic_gone:
            poll.tell(RequestRefused("topic_unknown", "it was deleted", topic=topic))
            return True
        try:
            again = self._ready(poll.wanted, poll.owner)
            if again is not None and not poll.is_over:
                again(lambda _: self.polls.try_again([poll]))
                return False
            received = self._look(poll.wanted)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the others
            poll.tell(error)
            return True
        if received.status is ReceiveStatus.EMPTY and not poll.is_over:
            if received.has_more:
                self.polls.try_again([poll])
            if received.has_more or poll.wanted.wait_ms > 0:
                return False
        poll.tell(received)
        return True

    # Receipts.

    def acknowledge(
        self, group: str, receipts: Sequence[Receipt], tell: TellAcks, owner: Hashable = None
    ) -> None:
        """Acknowledge deliveries; ``tell`` gets the outcomes once they are durable."""
        offsets: dict[int, list[int]] = {}
        in_flight: list[tuple[QueueFlights, int]] = []
        outcomes = []
        for receipt in receipts:
            found = self.deliveries.found(receipt)
            outcomes.append(AckOutcome.STALE if found is None else AckOutcome.ACKNOWLEDGED)
            if found is not None:
                number, flights = found
                offsets.setdefault(number, []).append(receipt.offset)
                in_flight.append((flights, receipt.offset))
        if not in_flight:
            tell(outcomes)
            return
        acks = tuple(self.deliveries.acks(group, *found) for found in offsets.items())

        def told(end: Decision | BaseException) -> None:
            tell(error_of(end) or outcomes)

        # This raises if the writer has no room; then nothing has changed.
        self.writer.put(Acknowledge(group=group, acks=acks), told, owner)
        for flights, offset in in_flight:
            flights.take_skipped()
            flights.finish(offset)
        if any(flights.is_fifo for flights, _ in in_flight):
            # Messages held back behind these in a FIFO queue may now be delivered.
            names = self.store.core.names
            self.polls.grown([(one.topic, one.queue_id) for one in map(names.named, offsets)])

    def change_invisible(self, receipt: Receipt, invisible_ms: int) -> Receipt:
        """Set how long a message stays in flight from now on; return its new receipt."""
        check_invisible(invisible_ms)
        number, flights = self.deliveries.in_flight(receipt)
        now_ms = self.clock.now_ms()
        popped_at_ms = flights.renew(receipt.offset, now_ms, invisible_ms)
        self._alarms.set(receipt.group, number, popped_at_ms + max(invisible_ms, 1))
        return msgspec.structs.replace(
            receipt,
            popped_at_ms=popped_at_ms,
            attempt=flights.attempt_of(receipt.offset),
            queue=number,
            epoch=self.deliveries.epoch,
        )

    def hold_until(self, receipt: Receipt, visible_at_ms: int) -> None:
        """Set when a message is visible again; its receipt stays valid."""
        number, flights = self.deliveries.in_flight(receipt)
        flights.hold_until(receipt.offset, visible_at_ms)
        self._alarms.set(receipt.group, number, visible_at_ms)

    def hold_back(self, receipt: Receipt, held_ms: int) -> None:
        """Let a message be visible again after ``held_ms`` and its group's own retry delay.

        Change nothing if the group has no retry policy of its own.
        """
        group = self.groups.find(receipt.group)
        if group is not None and group.backoff is not None:
            wait_ms = self.retry_delay_ms(group, receipt.attempt)
            self.hold_until(receipt, receipt.popped_at_ms + held_ms + wait_ms)

    def dead_letter(self, receipt: Receipt, tell: TellDone, owner: Hashable = None) -> None:
        """Make a message a dead letter now; ``tell`` gets None once that is durable."""
        number, flights = self.deliveries.in_flight(receipt)
        grave = Grave(
            receipt.group, receipt.topic, receipt.queue_id, number, receipt.offset, flights
        )
        self._bury(grave, tell, owner)

    def retry_delay_ms(self, group: Group, attempt: int) -> int:
        """Return how long a message waits after this attempt failed, by the group's policy."""
        if group.backoff is not None:
            return group.backoff.wait_ms(attempt)
        levels = self.topics.delay_levels
        return levels.delay_ms(levels.retry_level(attempt - 1))

    # Time, and changes of topics and groups.

    def tick(self) -> None:
        """Try requests whose messages are visible again, and record skipped messages."""
        now_ms = self.clock.now_ms()
        due: dict[Queue, None] = {}
        for group, number in self._alarms.due(now_ms):
            flights = self.places.of(group, number)
            named = self.store.core.names.queues.get(number)
            if flights is None or named is None:
                continue
            if flights.due_from_ms <= now_ms:
                due[named.topic, named.queue_id] = None
            later_ms = flights.due_after(now_ms)
            if later_ms != NEVER:
                self._alarms.set(group, number, later_ms)
        self.polls.grown(due)
        self.polls.give_up()
        if now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + LOOK_MS
            self.taking.is_full = self.places.in_flight >= IN_FLIGHT_MAX
            self._record_skips()

    def _record_skips(self) -> None:
        for _ in range(min(len(self._skipping), SKIPS_MAX)):
            group, number = next(iter(self._skipping))
            del self._skipping[group, number]
            flights = self.places.of(group, number)
            if flights is not None and flights.skipped:
                acks = self.deliveries.acks(group, number, [])
                # If the write fails, the messages are examined again after the next start.
                guarded(
                    lambda _: None,
                    self.writer.put,
                    Acknowledge(group=group, acks=(acks,)),
                    lambda _: None,
                )
                flights.take_skipped()

    def resumed(self, group: str) -> None:
        """Try the waiting requests of a group that is served again."""
        self.polls.try_again([poll for poll in self.polls if poll.wanted.group == group])

    def forget_group(self, group: str) -> None:
        """Forget a removed group."""
        self.places.forget(group=group)
        for key in [key for key in self.redelivered if key[0] == group]:
            del self.redelivered[key]
        self.resumed(group)

    def forget_topic(self, topic: str, queues: Sequence[int]) -> None:
        """Forget a removed topic."""
        self.places.forget(queues=queues)
        for key in [key for key in self.redelivered if key[1] == topic]:
            del self.redelivered[key]
        gone = self.polls.of_topic(topic)
        for poll in gone:
            poll.is_topic_gone = True
        self.polls.try_again(gone)


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        # The message is visible again later, and the pop that finds it tries again to bury it.
        log.warning("dead_letter_failed", extra={"cause": str(error)})


def check_invisible(invisible_ms: int) -> None:
    """Refuse an invisible time beyond the limits."""
    if not 0 <= invisible_ms <= kinds.INVISIBLE_MS_MAX:
        raise RequestRefused(
            "invisible_time_illegal",
            f"must be from 0 to {kinds.INVISIBLE_MS_MAX} ms",
            invisible_ms=invisible_ms,
        )
