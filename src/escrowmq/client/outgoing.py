"""What goes to a broker, and what it says of it, whichever kind of broker it is."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.client.messages import Sent

if TYPE_CHECKING:
    from escrowmq.client.network import Place


class Resolution(StrEnum):
    """What became of a local transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: Nobody can tell yet: the broker asks again later.
    UNKNOWN = "unknown"


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message for one queue."""

    place: Place
    body: bytes
    properties: bytes
    message_id: str
    born_at_ms: int
    #: Its order among those of its queue matters.
    is_keyed: bool
    is_delayed: bool

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.body) + len(self.properties)


class Holding(msgspec.Struct, frozen=True):
    """The half messages of one transaction."""

    transaction_id: str
    group: str
    messages: tuple[Outgoing, ...]
    #: The UUID of the ledger table that will know the outcome; empty if there is none.
    ledger: str = ""
    #: How long the sender may take.
    allowed_ms: int = 0
    #: Age before the first back-check; None means the broker's policy.
    check_after_ms: int | None = None
    #: Of the transaction's requests, from 0 on.
    number: int = 0

    @property
    def terms(self) -> tuple[object, ...]:
        """What a request says once for all transactions in it."""
        return (self.group, self.ledger, self.allowed_ms, self.check_after_ms)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(message.size for message in self.messages)


class Held(msgspec.Struct, frozen=True):
    """A transaction whose half messages a broker holds, durably."""

    address: str
    group: str
    transaction_id: str
    half_offset: int
    log_offset: int
    #: Of its first message, like the queue.
    message_id: str
    topic: str
    #: The broker's epoch when it answered; empty from a broker without a lineage.
    epoch: str = ""
    broker_name: str = ""
    queue_id: int = -1


class Decided(msgspec.Struct, frozen=True):
    """The one decision of a transaction, whoever made it."""

    #: ``committed`` or ``rolled_back``; empty if the broker does not tell.
    state: str
    by: str = ""
    at_ms: int = 0
    #: It had been decided before.
    is_repeated: bool = False


class Broker(Protocol):
    """One broker, as the producer needs it.  Each call waits until ``until`` (the loop's clock)."""

    @property
    def is_ours(self) -> bool:
        """Ours, or Apache's."""
        ...

    def send(self, message: Outgoing, until: float) -> Awaitable[Sent]:
        """Store an ordinary message."""
        ...

    async def hold(self, holding: Holding, until: float) -> Held:
        """Hold half messages; they are durable when this returns.  May be called again."""
        ...

    async def decide(self, held: Held, resolution: Resolution, until: float) -> Decided:
        """Commit or roll back.  May be called again."""
        ...

    async def close(self) -> None:
        """Wait for what was given to it."""
        ...
