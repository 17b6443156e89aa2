"""What the producer sends to a broker, ours or Apache's, and what the broker returns."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.client.messages.messages import Sent
from escrowmq.model.resolution import Resolution

if TYPE_CHECKING:
    from escrowmq.client.network.routing import QueueAddress


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message for one queue."""

    place: QueueAddress
    body: bytes
    properties: bytes
    message_id: str
    born_at_ms: int
    #: Whether the message has a key, so that its order in the queue matters.
    is_keyed: bool
    is_delayed: bool

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.body) + len(self.properties)


class Holding(msgspec.Struct, frozen=True):
    """The half messages of one transaction, or a part of them."""

    transaction_id: str
    group: str
    messages: tuple[Outgoing, ...]
    #: The UUID of the ledger that will have the outcome; empty if there is none.
    ledger: str = ""
    #: How long after the hold the sender's database may commit. Later, a check may fence the
    #: transaction off in its ledger.
    allowed_ms: int = 0
    #: Age before the first back-check; None means the broker's policy.
    check_after_ms: int | None = None
    #: Number of the hold request within its transaction, from 0 on.
    number: int = 0

    @property
    def terms(self) -> tuple[object, ...]:
        """The fields that a request states once for all its transactions."""
        return (self.group, self.ledger, self.allowed_ms, self.check_after_ms)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum(message.size for message in self.messages)

    def held(
        self,
        address: str,
        half_offset: int,
        log_offset: int,
        epoch: str = "",
        *,
        id_property: str = "",
    ) -> HeldTransaction:
        """Return the held transaction, given the place of its first half message."""
        first = self.messages[0]
        return HeldTransaction(
            address=address,
            group=self.group,
            transaction_id=self.transaction_id,
            half_offset=half_offset,
            log_offset=log_offset,
            message_id=first.message_id,
            topic=first.place.topic,
            epoch=epoch,
            broker_name=first.place.broker_name,
            queue_id=first.place.queue_id,
            id_property=id_property or self.transaction_id,
        )


class HeldTransaction(msgspec.Struct, frozen=True):
    """A transaction whose half messages a broker holds durably."""

    address: str
    group: str
    transaction_id: str
    half_offset: int
    log_offset: int
    #: Id of the first message. The topic, broker and queue are those of that message, too.
    message_id: str
    topic: str
    #: The broker's epoch when it answered; empty from a broker without a lineage.
    epoch: str = ""
    broker_name: str = ""
    queue_id: int = -1
    #: The half message's property ``__transactionId__`` at the broker. Apache's broker writes the
    #: message's id there.
    id_property: str = ""


class FinalDecision(msgspec.Struct, frozen=True):
    """The one decision of a transaction, from any source."""

    #: ``committed`` or ``rolled_back``; empty if the broker does not report it.
    state: str
    by: str = ""
    at_ms: int = 0
    #: Whether the transaction had been decided this way before the request.
    is_repeated: bool = False


class SendingBroker(Protocol):
    """One broker, as the producer uses it. Each call tries until ``until`` (the loop's clock)."""

    @property
    def is_ours(self) -> bool:
        """Whether this is a broker of ours; False for Apache's."""

    def send(self, message: Outgoing, until: float) -> Awaitable[Sent]:
        """Store an ordinary message."""

    async def hold(self, holding: Holding, until: float) -> HeldTransaction:
        """Hold half messages, durably. Apache's broker would store those of a repeat again."""

    async def decide(
        self, held: HeldTransaction, resolution: Resolution, until: float
    ) -> FinalDecision:
        """Commit or roll back. Apache's broker would publish again at a repeated commit."""

    async def close(self) -> None:
        """Wait until all calls are done."""
