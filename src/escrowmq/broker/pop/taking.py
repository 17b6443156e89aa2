"""Takes messages of some queues for a group: first those that are visible again, then new ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from escrowmq.broker.pop.dead_letters import Grave
from escrowmq.broker.pop.receipts import PoppedMessage, Receipt, Receive
from escrowmq.protocol.message.message_views import delivered_again, queue_offset_of

if TYPE_CHECKING:
    from escrowmq.broker.pop.flights import QueueFlights, Run
    from escrowmq.broker.pop.places import PopPlaces
    from escrowmq.broker.state.counting import BrokerCounts, Out
    from escrowmq.broker.state.queues import Queues
    from escrowmq.model.catalog import Group
    from escrowmq.store.queue.consume_queue import ConsumeQueue
    from escrowmq.store.store import Store

BYTES_MAX = 256 * 1024
"""Bytes of one answer, which may hold one larger message."""

EXAMINED_MAX = 2_048
"""Queue entries that are examined before the event loop may do other work."""


@dataclass(slots=True)
class Took:
    """Messages for one answer."""

    #: How many more queue entries may be examined.
    examinable: int
    #: Whether entries that may match were left unexamined, because of ``EXAMINED_MAX``.
    has_more: bool = False
    messages: list[PoppedMessage] = field(default_factory=list)
    size: int = 0
    again_count: int = 0
    rest: int = 0
    is_full: bool = False
    #: Queue numbers, and what is in flight there now.
    touched: list[tuple[int, QueueFlights]] = field(default_factory=list)
    #: Messages whose last attempt failed.
    exhausted: list[Grave] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """One queue of one answer."""

    wanted: Receive
    queue_id: int
    number: int
    queue: ConsumeQueue
    flights: QueueFlights
    out: Out
    now_ms: int
    until_ms: int


@dataclass(eq=False)
class PopTaking:
    """Takes messages. Use it from one event loop only."""

    store: Store
    queues: Queues
    places: PopPlaces
    counts: BrokerCounts
    #: Whether too many messages are in flight to all groups together.
    is_full: bool = field(default=False, init=False)
    #: Moves with each answer, so that no queue is always the first.
    _turn: int = field(default=0, init=False)

    def take(self, wanted: Receive, group: Group, queue_ids: Sequence[int], now_ms: int) -> Took:
        """Deliver up to ``wanted.count_max`` messages."""
        took = Took(EXAMINED_MAX)
        out = self.counts.given(wanted.group, wanted.topic)
        self._turn += 1
        shift = self._turn % max(len(queue_ids), 1)
        for queue_id in (*queue_ids[shift:], *queue_ids[:shift]):
            found = self.places.flights(wanted.group, wanted.topic, queue_id)
            queue = self.store.queue(wanted.topic, queue_id)
            if found is None or queue is None:
                continue
            number, flights = found
            until_ms = now_ms + max(wanted.invisible_ms, 1)
            place = _Place(wanted, queue_id, number, queue, flights, out, now_ms, until_ms)
            flights.delete_below(queue.start)
            if len(took.messages) < wanted.count_max and took.size < BYTES_MAX:
                self._take(place, took, group)
            took.rest += max(queue.end - flights.next, 0)
        return took

    def has_any(self, wanted: Receive, queue_ids: Sequence[int], now_ms: int) -> bool:
        """Whether a message of any tag could be delivered now; changes nothing."""
        for queue_id in queue_ids:
            queue = self.store.queue(wanted.topic, queue_id)
            if queue is None or queue.start == queue.end:
                continue
            found = self.places.flights(wanted.group, wanted.topic, queue_id)
            if found is None:
                # The group's first pop finds where it starts.
                return True
            flights = found[1]
            is_same = bool(wanted.attempt_id) and wanted.attempt_id == flights.attempt_id
            if wanted.is_fifo and flights.is_blocked(now_ms) and not is_same:
                continue
            if max(flights.next, queue.start) < queue.end or flights.due(now_ms, 1):
                return True
        return False

    def _take(self, place: _Place, took: Took, group: Group) -> None:
        wanted, flights, now_ms = place.wanted, place.flights, place.now_ms
        before = len(took.messages)
        if wanted.is_fifo and flights.is_blocked(now_ms):
            if wanted.attempt_id and wanted.attempt_id == flights.attempt_id:
                same = flights.unacknowledged(wanted.count_max)
                self._take_again(place, took, same, counts=False)
            return
        due = flights.due(now_ms, wanted.count_max - len(took.messages))
        last = group.retry_max + 1
        exhausted = [offset for offset in due if flights.attempt_of(offset) >= last]
        took.exhausted += [
            Grave(wanted.group, wanted.topic, place.queue_id, place.number, offset, flights)
            for offset in exhausted
        ]
        if exhausted:
            due = [offset for offset in due if offset not in exhausted]
        is_all = self._take_again(place, took, due)
        if not wanted.is_fifo or (is_all and not exhausted):
            self._take_new(place, took)
        if len(took.messages) > before:
            flights.attempt_id, flights.is_fifo = wanted.attempt_id, wanted.is_fifo

    def _take_again(
        self, place: _Place, took: Took, offsets: list[int], *, counts: bool = True
    ) -> bool:
        """Deliver messages again; return whether the answer has room for all of them."""
        for first, count in _runs(offsets):
            records = self._read(place, took, first, count, is_filtered=False)
            if records is None:
                return False
            found, end = records
            place.flights.deliver_again(found, place.now_ms, place.until_ms, counts=counts)
            for offset in range(first, end):
                if offset not in found:
                    place.flights.lose(offset)
            self._give(place, took, found)
            took.again_count += len(found)
            if end < first + count:
                return False
        return True

    def _take_new(self, place: _Place, took: Took) -> None:
        flights = place.flights
        while True:
            room = min(place.wanted.count_max - len(took.messages), flights.room)
            if flights.room == 0 or self.is_full:
                took.is_full = took.is_full or flights.next < place.queue.end
                return
            if room <= 0 or flights.next >= place.queue.end:
                return
            if took.examinable <= 0:
                took.has_more = True
                return
            records = self._read(place, took, flights.next, room, is_filtered=True)
            if records is None:
                return
            found, end = records
            took.examinable -= max(end - flights.next, 1)
            given = flights.deliver(end, list(found), place.now_ms, place.until_ms)
            self._give(place, took, {offset: found[offset] for offset in given})

    def _read(
        self, place: _Place, took: Took, first: int, count: int, *, is_filtered: bool
    ) -> tuple[dict[int, bytes], int] | None:
        """Return messages by queue offset, and where to read next; None if the answer is full."""
        if took.messages and took.size >= BYTES_MAX:
            return None
        pulled = self.queues.pull(
            place.wanted.topic,
            place.queue_id,
            first,
            count_max=count,
            bytes_max=max(BYTES_MAX - took.size, 1),
            codes=place.wanted.tags if is_filtered else None,
            examined_max=took.examinable,
        )
        found = {queue_offset_of(record): record for record in pulled.messages}
        return found, pulled.next_offset

    def _give(self, place: _Place, took: Took, records: dict[int, bytes]) -> None:
        """Add delivered messages to the answer."""
        wanted, flights = place.wanted, place.flights
        epoch = self.store.core.lineage.epochs[-1].id
        for offset, record in records.items():
            attempt = flights.attempt_of(offset)
            receipt = Receipt(
                *(wanted.group, wanted.topic, place.queue_id, offset, place.now_ms),
                *(attempt, place.number, epoch),
            )
            took.messages.append(PoppedMessage(delivered_again(record, attempt), receipt))
            took.size += len(record)
        place.out.add(place.queue_id, list(records.values()), flights.next)
        took.touched.append((place.number, flights))


def _runs(offsets: list[int]) -> Iterator[Run]:
    """Yield runs of consecutive offsets."""
    first = count = 0
    for offset in offsets:
        if count and offset == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = offset, 1
    if count:
        yield first, count
