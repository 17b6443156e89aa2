"""What the tables of needs look up: to whom something belongs that a request only points at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.access.known_users import KnownUser
from escrowmq.model.errors import EscrowError
from escrowmq.protocol.message.ids import parse_offset_message_id
from escrowmq.protocol.message.stored_message import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Clients
    from escrowmq.store.reading.reader import StoreReader
    from escrowmq.store.store import Store
    from escrowmq.transaction.records import NamedOrigin
    from escrowmq.transaction.table import Half


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """Facts of the store, and of the clients that are online."""

    store: Store
    reader: StoreReader
    clients: Clients[ClientLink]
    #: Finds a transaction by half offset or id.
    find: Callable[[int, str], Half]
    #: Reads the half offset from a gRPC client's transaction id; refuses an id that is not ours.
    half_of_id: Callable[[str], int] = int

    def origin_of(self, half_offset: int) -> NamedOrigin | None:
        """Return where a half message comes from; None if there is none."""
        half = self.store.core.half(half_offset)
        return None if half is None else self.store.core.names.origins[half.origin]

    def transaction(self, half_offset: int, transaction_id: str) -> int | None:
        """Return the half offset of a transaction that a request names; None if there is none."""
        try:
            return self.find(half_offset, transaction_id).half_offset
        except EscrowError:
            return None

    def transaction_at(self, offset_message_id: str) -> int | None:
        """Return the half offset of the message with this id; None if there is none."""
        try:
            _, log_offset = parse_offset_message_id(offset_message_id)
        except EscrowError:
            return None
        return self.store.table.row_at(log_offset)

    def attempt(self, transaction_id: str) -> int | None:
        """Return the half offset of a sink's attempt; None if there is none."""
        half = self.store.core.find(transaction_id)
        return None if half is None else half.half_offset

    def topic_at(self, log_offset: int) -> str | None:
        """Return the topic of a visible message; empty for an invisible one; None if none."""
        located = self.reader.at(log_offset)
        if located is None:
            return None
        return decode(located.message).topic if located.is_visible else ""

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists."""
        return self.store.catalog.topic(topic) is not None

    def has_group(self, group: str) -> bool:
        """Whether a consumer group exists."""
        return self.store.catalog.group(group) is not None

    def producer_user(self, group: str, client_id: str) -> str:
        """Return the user of a producer that is online; empty if there is none."""
        for client in self.clients.producers(group):
            if client.client_id == client_id:
                caller = client.connection.caller
                return caller.name if isinstance(caller, KnownUser) else ""
        return ""
