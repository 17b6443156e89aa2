"""Messages whose invisible time their consumer leaves to the broker, as push consumers do.

Such a message stays invisible while its client is online, for at most three hours. When the client
leaves, its messages are visible again soon; a client that lost only its connection may come back
before that and keep them. Receipts do not change meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from escrowmq.broker.pop.receipts import Receipt
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.broker.pop.service import PopService
    from escrowmq.broker.write.broker_clock import BrokerClock

INVISIBLE_MS = 60_000
"""How long messages stay invisible after their client lost its connection."""
HELD_MS_MAX = 3 * 3_600_000
"""How long a message stays invisible at most while its client is online."""
RELEASED_MS = 1_000
"""How long messages stay invisible after their client said goodbye or was silent for too long."""
SLICE_MAX = 256
"""Messages whose time is set before the event loop may do other work."""

_QUEUE_SHIFT = 48
_OFFSET_MASK = (1 << _QUEUE_SHIFT) - 1

#: By group and topic: the queue and offset of each message, as one number, and when it was popped.
Held = dict[tuple[str, str], dict[int, int]]


class Renewals:
    """Messages that clients hold. Use it from one event loop only."""

    def __init__(self, popping: PopService, clock: BrokerClock) -> None:
        self._popping = popping
        self._store_clock = clock
        #: By client id.
        self._held: dict[str, Held] = {}
        #: By client id: when the messages of a client that lost its connection are visible.
        self._left: dict[str, int] = {}

    def count(self, client_id: str) -> int:
        """Return how many messages a client holds."""
        return sum(map(len, self._held.get(client_id, {}).values()))

    def hold(self, client_id: str, receipt: Receipt) -> None:
        """Note that a client holds a message."""
        held = self._held.setdefault(client_id, {})
        of_topic = held.setdefault((receipt.group, receipt.topic), {})
        of_topic[receipt.queue_id << _QUEUE_SHIFT | receipt.offset] = receipt.popped_at_ms

    def drop(self, client_id: str, receipt: Receipt) -> None:
        """Note that a client is done with a message, or sets its time itself."""
        held = self._held.get(client_id)
        of_topic = None if held is None else held.get((receipt.group, receipt.topic))
        if held is None or of_topic is None:
            return
        of_topic.pop(receipt.queue_id << _QUEUE_SHIFT | receipt.offset, None)
        if not of_topic:
            del held[receipt.group, receipt.topic]
            if not held:
                del self._held[client_id]
                self._left.pop(client_id, None)

    def hold_shortly(self, receipt: Receipt) -> None:
        """Let a message be visible again in ``INVISIBLE_MS``.

        Its client's telemetry stream ended before the message was sent.
        """
        self._popping.hold_until(receipt, self._store_clock.now_ms() + INVISIBLE_MS)

    def leave(self, client_id: str) -> None:
        """Let a client's messages be visible again in ``INVISIBLE_MS``, unless it comes back."""
        if client_id in self._held:
            until_ms = self._store_clock.now_ms() + INVISIBLE_MS
            self._left[client_id] = until_ms
            self._set_times(self._receipts(self._held[client_id]), until_ms)

    def end(self, client_id: str) -> None:
        """Let a client's messages be visible again in ``RELEASED_MS``.

        The client has said goodbye, or was silent for too long.
        """
        self._left.pop(client_id, None)
        held = self._held.pop(client_id, None)
        if held is not None:
            self._set_times(self._receipts(held), self._store_clock.now_ms() + RELEASED_MS)

    def come_back(self, client_id: str) -> None:
        """Keep the messages of a client that has its connection again."""
        if self._left.pop(client_id, None) is not None:
            until_ms = self._store_clock.now_ms() + HELD_MS_MAX
            self._set_times(self._receipts(self._held[client_id]), until_ms)

    def sweep(self) -> None:
        """Forget clients that lost their connection and did not come back in time."""
        now_ms = self._store_clock.now_ms()
        for client_id in [one for one, until_ms in self._left.items() if until_ms <= now_ms]:
            del self._left[client_id]
            self._held.pop(client_id, None)

    def _receipts(self, held: Held) -> Iterator[Receipt]:
        found = [(names, list(messages.items())) for names, messages in held.items()]
        return (
            Receipt(
                group=group,
                topic=topic,
                queue_id=place >> _QUEUE_SHIFT,
                offset=place & _OFFSET_MASK,
                popped_at_ms=popped_at_ms,
            )
            for (group, topic), messages in found
            for place, popped_at_ms in messages
        )

    def _set_times(self, receipts: Iterator[Receipt], visible_at_ms: int) -> None:
        for receipt in islice(receipts, SLICE_MAX):
            # Refused if the message was acknowledged meanwhile, or its offsets were reset.
            with suppress(RequestRefused):
                self._popping.hold_until(receipt, visible_at_ms)
        more = next(receipts, None)
        if more is not None:
            rest = chain((more,), receipts)
            asyncio.get_running_loop().call_soon(self._set_times, rest, visible_at_ms)
