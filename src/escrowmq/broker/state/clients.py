"""Clients that are online: producers for back-checks, and consumers to share queues, by group.

A client becomes known by its heartbeats (with gRPC, by its settings), under its own id and its
connection; sending does not make it known. The broker forgets a client when it unregisters, when
its connection closes, or when it has been silent for too long. This module knows no sockets: a
connection is any hashable object that the server uses for one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from escrowmq.broker.state.client_links import ClientDialect
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting.client_bodies import CONSUME_FROM_LAST, CONSUME_PASSIVELY
from escrowmq.protocol.remoting.codes import UNKNOWN_LANGUAGE
from escrowmq.protocol.remoting.consumer_headers import EXPRESSION_TAG

SILENT_MS_MAX = 120_000
"""The broker forgets a client that is silent for longer than this, as RocketMQ does."""

PRODUCER = "producer"
CONSUMER = "consumer"

Connection = TypeVar("Connection", bound=Hashable)


class Membership(NamedTuple):
    """One client's membership in one group."""

    group: str
    role: str
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Subscription of a consumer group to one topic."""

    topic: str
    #: Tags, "*" for all.
    expression: str = "*"
    #: Hash codes of the tags; empty for all.
    codes: frozenset[int] = frozenset()
    #: The client's clock when it subscribed; the newest version wins.
    version: int = 0
    kind: str = EXPRESSION_TAG


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatement:
    """A client's statement about one of its consumer groups."""

    group: str
    #: Whether each message goes to all members instead of one.
    is_broadcast: bool = False
    consume_type: str = CONSUME_PASSIVELY
    from_where: str = CONSUME_FROM_LAST
    subscriptions: tuple[Subscription, ...] = ()
    #: Hash of the subscriptions; 0 if the client sends no hash.
    fingerprint: int = 0
    #: False if the client left out its subscriptions, because they have not changed.
    has_subscriptions: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Client(Generic[Connection]):
    """One member of one group."""

    client_id: str
    connection: Connection
    language: str = UNKNOWN_LANGUAGE
    version: int = 0
    #: When the broker last heard from the client, on the monotonic clock.
    heard_at_ms: int = 0
    #: The client's address, in the form that stored messages use.
    host: bytes = b""
    dialect: ClientDialect = ClientDialect.JSON


@dataclass(slots=True)
class ConsumerGroup(Generic[Connection]):
    """Online members of a consumer group, and the group's latest settings."""

    said: ConsumerStatement
    members: dict[str, Client[Connection]] = field(default_factory=dict)
    #: By topic.
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    def subscribe(self, said: ConsumerStatement) -> bool:
        """Take a member's statement; return whether the group's subscriptions changed."""
        self.said = said
        if not said.has_subscriptions:
            return False
        changed = False
        for subscription in said.subscriptions:
            known = self.subscriptions.get(subscription.topic)
            if known is None or known.version < subscription.version:
                changed = changed or known is None or known.expression != subscription.expression
                self.subscriptions[subscription.topic] = subscription
        # The group no longer consumes a topic that the newest statement leaves out.
        left = self.subscriptions.keys() - {one.topic for one in said.subscriptions}
        for topic in left:
            del self.subscriptions[topic]
        return changed or bool(left)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits on what is online at a time; the broker refuses what exceeds them."""

    groups_max: int = 20_000
    #: Producers and consumers, each counted once per group.
    clients_max: int = 100_000
    subscriptions_max: int = 1_000


class Clients(Generic[Connection]):
    """All clients that are online."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self._producers: dict[str, dict[str, Client[Connection]]] = {}
        self._consumers: dict[str, ConsumerGroup[Connection]] = {}
        #: Memberships by connection, so that closing a connection is quick.
        self._places: dict[Connection, set[Membership]] = {}
        #: Address by connection, and connection by address.
        self._hosts: dict[Connection, bytes] = {}
        self._connections: dict[bytes, Connection] = {}
        self._count = 0
        #: Round-robin position in each producer group.
        self._turns: dict[str, int] = {}

    # Reports from clients. Each method returns the consumer groups that must rebalance.

    def hear(
        self,
        client: Client[Connection],
        producer_groups: Iterable[str],
        consuming: Iterable[ConsumerStatement],
    ) -> set[str]:
        """Take a heartbeat."""
        for group in producer_groups:
            if group not in self._producers:
                self._refuse_group(len(self._producers), group)
            self._join(self._producers.setdefault(group, {}), client, Membership(group, PRODUCER))
        return {said.group for said in consuming if self._hear_consumer(client, said)}

    def _hear_consumer(self, client: Client[Connection], said: ConsumerStatement) -> bool:
        if len(said.subscriptions) > self._limits.subscriptions_max:
            raise RequestRefused(
                "too_many_subscriptions",
                f"a group subscribes to at most {self._limits.subscriptions_max} topics",
                consumer_group=said.group,
            )
        group = self._consumers.get(said.group)
        if group is None:
            self._refuse_group(len(self._consumers), said.group)
            group = self._consumers[said.group] = ConsumerGroup(said)
        has_joined = self._join(group.members, client, Membership(said.group, CONSUMER))
        return group.subscribe(said) or has_joined

    def _join(
        self, members: dict[str, Client[Connection]], client: Client[Connection], place: Membership
    ) -> bool:
        known = members.get(client.client_id)
        if known is None:
            if self._count >= self._limits.clients_max:
                raise RequestRefused(
                    "too_many_clients",
                    f"at most {self._limits.clients_max} clients can be online",
                    group=place.group,
                )
            self._count += 1
        elif known.connection != client.connection:
            # The client reconnected before the broker saw the old connection close.
            self._places[known.connection].discard(place._replace(client_id=client.client_id))
        members[client.client_id] = client
        places = self._places.setdefault(client.connection, set())
        places.add(place._replace(client_id=client.client_id))
        self._hosts[client.connection] = client.host
        self._connections[client.host] = client.connection
        return known is None or known.connection != client.connection

    def _refuse_group(self, count: int, group: str) -> None:
        if count >= self._limits.groups_max:
            raise RequestRefused(
                "too_many_groups",
                f"at most {self._limits.groups_max} groups can be online",
                group=group,
            )

    def leave(self, client_id: str, producer_group: str, consumer_group: str) -> set[str]:
        """Remove a client from these groups; an empty name stands for no group."""
        places = [
            Membership(producer_group, PRODUCER, client_id),
            Membership(consumer_group, CONSUMER, client_id),
        ]
        return self._forget(place for place in places if self._at(place) is not None)

    def drop(self, connection: Connection) -> set[str]:
        """Forget the clients of a closed connection."""
        changed = self._forget(list(self._places.get(connection, ())))
        self._places.pop(connection, None)
        host = self._hosts.pop(connection, None)
        if host is not None and self._connections.get(host) == connection:
            del self._connections[host]
        return changed

    def expire(self, now_ms: int) -> set[str]:
        """Forget clients that were silent for too long."""
        return self._forget(
            [
                place
                for places in self._places.values()
                for place in places
                if (client := self._at(place)) and now_ms - client.heard_at_ms > SILENT_MS_MAX
            ]
        )

    def _at(self, place: Membership) -> Client[Connection] | None:
        return self._members(place).get(place.client_id)

    def _members(self, place: Membership) -> dict[str, Client[Connection]]:
        if place.role == PRODUCER:
            return self._producers.get(place.group, {})
        group = self._consumers.get(place.group)
        return {} if group is None else group.members

    def _forget(self, places: Iterable[Membership]) -> set[str]:
        changed = set()
        for place in places:
            members = self._members(place)
            client = members.pop(place.client_id)
            self._count -= 1
            self._places[client.connection].discard(place)
            if place.role == CONSUMER:
                changed.add(place.group)
                if not members:
                    del self._consumers[place.group]
            elif not members:
                del self._producers[place.group]
                self._turns.pop(place.group, None)
        return changed

    # Queries.

    def producers(self, group: str) -> list[Client[Connection]]:
        """Return the producers of a group in the order in which they joined."""
        return list(self._producers.get(group, {}).values())

    def fingerprint(self, group: str) -> int:
        """Return the fingerprint of a group's last statement, or 0 if it has none."""
        online = self._consumers.get(group)
        return 0 if online is None else online.said.fingerprint

    def consumers(self, group: str) -> ConsumerGroup[Connection] | None:
        """Return a consumer group, or None if no member is online."""
        return self._consumers.get(group)

    def is_broadcast(self, group: str) -> bool:
        """Return whether a group is online and each of its members gets every message."""
        online = self._consumers.get(group)
        return online is not None and online.said.is_broadcast

    def producer_groups(self) -> list[str]:
        """Return the groups that have a producer online."""
        return list(self._producers)

    def online_groups(self) -> list[ConsumerGroup[Connection]]:
        """Return the consumer groups that are online."""
        return list(self._consumers.values())

    def consumer_groups(self) -> list[str]:
        """Return the groups that have a consumer online."""
        return list(self._consumers)

    def producer_count(self, group: str) -> int:
        """Return how many producers of a group are online."""
        return len(self._producers.get(group, ()))

    def askable(self, group: str, host: bytes) -> Iterator[Client[Connection]]:
        """Yield the producers to ask about a transaction: the one at ``host``, then the others."""
        first = self._producer_at(group, host)
        if first is not None:
            yield first
        others = [client for client in self.producers(group) if client is not first]
        if others:
            turn = self._turns[group] = (self._turns.get(group, -1) + 1) % len(others)
            yield from others[turn:] + others[:turn]

    def _producer_at(self, group: str, host: bytes) -> Client[Connection] | None:
        connection = self._connections.get(host)
        if connection is None:
            return None
        for place in self._places[connection]:
            if (place.group, place.role) == (group, PRODUCER):
                return self._at(place)
        return None
