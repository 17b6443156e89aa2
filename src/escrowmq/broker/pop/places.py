"""Where groups are in the queues that they read by pop, and what is in flight there.

The broker delivers no message before the position below it is durable. A group reads a topic in one
mode: a pull ends pop, a pop ends pulls, and the change starts from the lower position. While a
group pops, its pull offset follows its acknowledged prefix, so that everything which reads offsets
sees its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.pop.flights import QueueFlights
from escrowmq.broker.state.long_polls import WAITING_MAX
from escrowmq.broker.write.inbox import error_of
from escrowmq.model.errors import Unavailable
from escrowmq.transaction.commands import Decision
from escrowmq.transaction.pop_commands import PlacePops, PopPlace

if TYPE_CHECKING:
    from escrowmq.broker.state.queues import Queues
    from escrowmq.broker.write.writer import Writer
    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.records import PopRecord

RECENT_BYTES = 1024 * 1024 * 1024
"""A group that is to start at a queue's end starts at its first message if that is at most this
many bytes behind the end of the log, as in RocketMQ."""

Told = Callable[[BaseException | None], None]


class PopProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Progress of a group in one queue."""

    #: Whether the group reads the queue by pop.
    is_popped: bool
    #: Messages acknowledged beyond the prefix.
    beyond: int = 0
    #: Messages that a consumer has, and that are not visible again.
    in_flight: int = 0


class PopPlaces:
    """Positions and flights. Use it from one event loop only."""

    def __init__(self, store: Store, writer: Writer, queues: Queues, meta: Meta) -> None:
        self._store = store
        self._writer = writer
        self._queues = queues
        self._meta = meta
        #: By group and queue number: groups that pop now.
        self._flights: dict[tuple[str, int], QueueFlights] = {}
        #: By group and topic: requests that wait for a position to become durable.
        self._placing: dict[tuple[str, str], list[Told]] = {}
        for group, places in store.core.pops.groups.items():
            for number, position in places.items():
                if not position.is_ended:
                    self._follow(group, number, position.prefix, is_reset=True)

    # Questions.

    def flights(self, group: str, topic: str, queue_id: int) -> tuple[int, QueueFlights] | None:
        """Return the queue's number and what is in flight; None if the group does not pop it."""
        number = self._store.core.names.number_of(topic, queue_id)
        if number is None:
            return None
        found = self._flights.get((group, number))
        return None if found is None else (number, found)

    def of(self, group: str, number: int) -> QueueFlights | None:
        """Return what is in flight to a group in the queue with this number."""
        return self._flights.get((group, number))

    @property
    def in_flight(self) -> int:
        """Messages that were delivered to groups by pop and are not acknowledged."""
        return sum(flights.count for flights in self._flights.values())

    def progress(self, group: str, topic: str, queue_id: int, now_ms: int) -> PopProgress:
        """Return a group's progress beyond its acknowledged prefix."""
        pops, names = self._store.core.pops, self._store.core.names
        number = names.number_of(topic, queue_id) if group in pops.groups else None
        position = None if number is None else pops.get(group, number)
        if number is None or position is None or position.is_ended:
            return PopProgress(is_popped=False)
        flights = self._flights.get((group, number))
        return PopProgress(
            is_popped=True,
            beyond=int.from_bytes(position.above, "little").bit_count(),
            in_flight=0 if flights is None else flights.invisible(now_ms),
        )

    def is_popped(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group reads this queue by pop."""
        return self._position(group, topic, queue_id) is not None

    def _position(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the acknowledged prefix if the group reads this queue by pop."""
        pops = self._store.core.pops
        if group not in pops.groups:
            return None
        number = self._store.core.names.number_of(topic, queue_id)
        position = None if number is None else pops.get(group, number)
        return None if position is None or position.is_ended else position.prefix

    # Changes.

    def ready(
        self, group: str, topic: str, queue_ids: Iterable[int], *, at_end: bool, owner: Hashable
    ) -> Callable[[Told], None] | None:
        """Get ready to pop these queues; None if that is done.

        Otherwise the caller passes a function to the result, to be called once positions are
        durable, and then asks again.
        """
        placing = self._placing.get((group, topic))
        if placing is not None:
            if len(placing) >= WAITING_MAX:
                raise Unavailable("too_many_waiting", "try again", consumer_group=group)
            return placing.append
        places = [
            place
            for queue_id in queue_ids
            if (place := self._missing(group, topic, queue_id, at_end=at_end)) is not None
        ]
        if not places:
            return None
        command = PlacePops(group=group, places=tuple(places))
        return lambda told: self._place(command, topic, told, owner)

    def _missing(self, group: str, topic: str, queue_id: int, *, at_end: bool) -> PopPlace | None:
        """Return the position to make for a queue; None if it needs none."""
        queue = self._store.queue(topic, queue_id)
        core = self._store.core
        number = core.names.number_of(topic, queue_id)
        if queue is None or number is None or (group, number) in self._flights:
            return None
        position = core.pops.get(group, number)
        if position is not None and not position.is_ended:
            self._flights[group, number] = QueueFlights(position)
            return None
        offset = self._meta.offsets.get((group, topic, queue_id))
        if offset is None:
            may_skip = at_end and not self._store.catalog.has_lost_offsets(group)
            is_long = may_skip and not self._queues.is_recent(topic, queue_id, RECENT_BYTES)
            offset = queue.end if is_long else queue.start
        return PopPlace(number, min(max(offset, queue.start), queue.end))

    def _place(self, command: PlacePops, topic: str, told: Told, owner: Hashable = None) -> None:
        key = (command.group, topic)

        def placed(end: Decision | BaseException) -> None:
            error = error_of(end)
            for tell in self._placing.pop(key):
                tell(error)

        # This raises if the writer has no room; then nothing has changed.
        self._writer.put(command, placed, owner)
        self._placing[key] = [told]

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """End pop because the group pulls; return where it continues, or None if it did not pop."""
        prefix = self._position(group, topic, queue_id)
        number = self._store.core.names.number_of(topic, queue_id)
        queue = self._store.queue(topic, queue_id)
        if prefix is None or number is None or queue is None:
            return None
        if (group, topic) not in self._placing:
            place = PopPlace(number, queue.end, is_ended=True)
            self._place(PlacePops(group=group, places=(place,)), topic, lambda _: None)
            self._flights.pop((group, number), None)
        return max(prefix, queue.start)

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Move a group that pops to these offsets, by queue id."""
        if (group, topic) in self._placing:
            raise Unavailable("group_changing", "try again", consumer_group=group, topic=topic)
        places = []
        for queue_id, offset in offsets.items():
            number = self._store.core.names.number_of(topic, queue_id)
            if number is not None and self.is_popped(group, topic, queue_id):
                places.append(PopPlace(number, offset, is_reset=True))
        if places:
            self._place(PlacePops(group=group, places=tuple(places)), topic, lambda _: None)
        # Only now, because a refused reset leaves messages in flight as they are.
        for place in places:
            self._flights.pop((group, place.queue), None)

    def durable(self, record: PopRecord, *, is_reset: bool) -> None:
        """Set the group's offset to the acknowledged prefix of a durable record."""
        self._follow(record.group, record.queue, record.prefix, is_reset=is_reset)

    def _follow(self, group: str, number: int, offset: int, *, is_reset: bool) -> None:
        named = self._store.core.names.queues.get(number)
        if named is not None and group in self._store.catalog.groups:
            self._meta.set_offset(group, named.topic, named.queue_id, offset, reset=is_reset)

    def forget(self, *, group: str = "", queues: Iterable[int] = ()) -> None:
        """Forget a removed group, or the queues of a removed topic."""
        numbers = set(queues)
        for key in [key for key in self._flights if key[0] == group or key[1] in numbers]:
            del self._flights[key]
