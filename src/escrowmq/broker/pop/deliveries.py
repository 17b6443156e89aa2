"""Checks receipts against the messages in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.pop_commands import PopAcks

if TYPE_CHECKING:
    from escrowmq.broker.pop.flights import QueueFlights, Run
    from escrowmq.broker.pop.places import PopPlaces
    from escrowmq.broker.pop.receipts import Receipt
    from escrowmq.store.store import Store


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Finds the deliveries that receipts name."""

    store: Store
    places: PopPlaces

    def acks(self, group: str, number: int, offsets: list[int]) -> PopAcks:
        """Return these acknowledgements, with what was skipped in the same queue."""
        flights = self.places.of(group, number)
        ranges: list[Run] = [(offset, 1) for offset in offsets]
        if flights is not None:
            ranges += flights.skipped
        queue = self.store.queues.get(number)
        return PopAcks(number, 0 if queue is None else queue.start, tuple(ranges))

    def found(self, receipt: Receipt) -> tuple[int, QueueFlights] | None:
        """Return the number and the flights of a receipt's queue; None if the receipt is stale."""
        found = self.places.flights(receipt.group, receipt.topic, receipt.queue_id)
        if found is None:
            return None
        number, flights = found
        is_ours = (
            receipt.queue in (-1, number)
            and receipt.epoch in ("", self.epoch)
            and receipt.attempt in (0, flights.attempt_of(receipt.offset))
            and flights.is_current(receipt.offset, receipt.popped_at_ms)
        )
        if is_ours or self._was_acknowledged(receipt, number):
            return found
        return None

    def _was_acknowledged(self, receipt: Receipt, number: int) -> bool:
        """Whether the message is acknowledged: a client repeats itself if an answer was lost."""
        position = self.store.core.pops.get(receipt.group, number)
        end = self.store.core.queue_ends.get(number, 0)
        return position is not None and 0 <= receipt.offset < end and position.has(receipt.offset)

    @property
    def epoch(self) -> str:
        """The id of the broker's last start, which new receipts name."""
        return self.store.core.lineage.epochs[-1].id

    def in_flight(self, receipt: Receipt) -> tuple[int, QueueFlights]:
        """Return the number and the flights of a receipt's queue; refuse it if not in flight."""
        found = self.found(receipt)
        if found is None or not found[1].attempt_of(receipt.offset):
            text = "the message was acknowledged, delivered again, or the broker restarted"
            place = f"{receipt.topic}/{receipt.queue_id}/{receipt.offset}"
            raise RequestRefused("receipt_stale", text, place=place)
        return found
