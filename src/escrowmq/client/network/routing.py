"""Routes of topics, and connections to the brokers that hold them.

A route is read from the first name server that answers, cached for ``ROUTE_S``, and read again when
it proves wrong. There is one connection per address; a lost one is reopened when it is needed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.client.network.connection import Asked, BrokerConnection, split_address
from escrowmq.client.network.foreign_peers import not_a_broker
from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.client.network.tls import chosen_tls
from escrowmq.client.network.trying import joined
from escrowmq.model.catalog import READ, WRITE
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.remoting.admin_headers import RouteHeader
from escrowmq.protocol.remoting.bodies import read_body
from escrowmq.protocol.remoting.cluster_bodies import MASTER_ID, TopicRoute
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from escrowmq.model.credentials import Credentials
    from escrowmq.model.tls import Tls
    from escrowmq.protocol.remoting.frames import RemotingFrame
    from escrowmq.protocol.remoting.headers import Header

ROUTE_S = 30.0
"""How long a route stays in the cache."""

ROUTES_MAX = 10_000
#: The setting of Apache's brokers that holds their name servers' addresses.
NAME_SERVERS_SETTING = "namesrvAddr"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """One queue and the address of its broker."""

    topic: str
    broker_name: str
    queue_id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The queues of one topic."""

    topic: str
    writable: tuple[QueueAddress, ...]
    readable: tuple[QueueAddress, ...]
    #: Taken from the default topic: the broker creates this topic with its first message.
    is_borrowed: bool
    until: float

    def place(self, broker_name: str, queue_id: int) -> QueueAddress | None:
        """Return the queue, or None if the topic does not have it."""
        for place in self.readable or self.writable:
            if (place.broker_name, place.queue_id) == (broker_name, queue_id):
                return place
        return None


def name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses from a list, or from text with semicolons as RocketMQ writes it."""
    # The value may be None, from an environment variable that is not set.
    given: object = text
    if not isinstance(given, Sequence) or not all(isinstance(part, str) for part in given):
        raise RequestRefused(
            "address_illegal", "an address is a text, host:port", type=type(text).__name__
        )
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise RequestRefused("address_illegal", "name at least one name server as host:port")
    for address in addresses:
        split_address(address)
    return addresses


def new_client_id() -> str:
    """Return a new id in the form of RocketMQ's clients: host, process, client."""
    return f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}"


class Network:
    """Connections and routes of one client. Use it from one event loop only."""

    def __init__(
        self,
        servers: str | Sequence[str],
        asked: Asked,
        opened: Callable[[BrokerConnection], None] = lambda _connection: None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.name_servers = name_servers(servers)
        self._tls = chosen_tls(tls)
        self._credentials = credentials
        self._asked = asked
        self._opened = opened
        self._connections: dict[str, BrokerConnection] = {}
        self._opening: dict[str, asyncio.Task[BrokerConnection]] = {}
        self._routes: dict[str, Route] = {}
        self._finding: dict[str, asyncio.Task[Route]] = {}
        #: Whether a name server ever answered; if so, a failure is an outage, not a wrong address.
        self._was_answered = False
        self._is_closed = False

    # Connections.

    async def connection(self, address: str) -> BrokerConnection:
        """Return the connection to this address; open it if there is none."""
        if self._is_closed:
            raise Unavailable("client_closed", "make a new one")
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        return await joined(self._opening, address, self._open)

    async def _open(self, address: str) -> BrokerConnection:
        connection = await BrokerConnection.open(
            address, self._asked, tls=self._tls, credentials=self._credentials
        )
        self._connections[address] = connection
        self._opened(connection)
        return connection

    def open_connections(self) -> list[BrokerConnection]:
        """Return the open connections."""
        return [one for one in self._connections.values() if one.is_open]

    async def ask(
        self, address: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> RemotingFrame:
        """Send a request that is safe to repeat; repeat it once if the connection is lost."""
        try:
            return await (await self.connection(address)).ask(code, header, body)
        except EscrowError as error:
            if error.code != "connection_lost":
                raise
        return await (await self.connection(address)).ask(code, header, body)

    async def call(
        self, address: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> RemotingFrame:
        """Send a request once; return its successful response, or raise."""
        return refuse_unless_done(await (await self.connection(address)).ask(code, header, body))

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        tasks = (*self._opening.values(), *self._finding.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        await asyncio.gather(*(one.lost for one in self._connections.values()))

    # Routes.

    async def route(self, topic: str) -> Route:
        """Return the queues of a topic; for a missing topic, those it would be created with."""
        known = self._routes.get(topic)
        if known is not None and asyncio.get_running_loop().time() < known.until:
            return known
        try:
            return await joined(self._finding, topic, self._find)
        except (Unavailable, OutcomeUnknown):
            if known is None:
                raise
            # No name server answers, so the expired route is the best guess.
            return known

    def forget(self, topic: str) -> None:
        """Drop a route that proved wrong."""
        self._routes.pop(topic, None)

    async def _find(self, topic: str) -> Route:
        answer = await self.ask_name_servers(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=topic)
        )
        is_borrowed = answer.code == ResponseCode.TOPIC_NOT_EXIST
        if is_borrowed:
            # The first message creates the topic with the settings of the default topic.
            answer = await self.ask_name_servers(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=DEFAULT_TOPIC)
            )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RequestRefused("topic_unknown", "create the topic first", topic=topic)
        refuse_unless_done(answer)
        route = _route(topic, read_body(TopicRoute, answer.body), is_borrowed=is_borrowed)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        if not is_borrowed:
            self._routes[topic] = route
        return route

    async def ask_name_servers(self, code: int, header: Header) -> RemotingFrame:
        """Return the response of the first name server that answers."""
        failure: EscrowError | None = None
        for address in self.name_servers:
            try:
                answer = await self.ask(address, code, header)
            except (Unavailable, OutcomeUnknown) as error:
                failure = error
                continue
            self._was_answered = True
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return answer
            return await self._ask_name_server_of(address, code, header)
        assert failure is not None
        if not self._was_answered:
            self._refuse_foreign(failure)
        raise Unavailable(
            "name_server_unreachable",
            "is it running, and is the address right?",
            addresses=list(self.name_servers),
            cause=str(failure),
        )

    async def _ask_name_server_of(self, address: str, code: int, header: Header) -> RemotingFrame:
        """Ask the name server that an Apache broker, found at this address, is configured with."""
        answer = refuse_unless_done(await self.ask(address, RequestCode.GET_BROKER_CONFIG))
        settings = dict(
            line.partition("=")[::2] for line in answer.body.decode(errors="replace").splitlines()
        )
        told = settings.get(NAME_SERVERS_SETTING, "").strip().replace("\\:", ":")
        if not told:
            raise RequestRefused(
                "name_server_unknown",
                "the broker there gives no name server: give a name server's address",
                address=address,
            )
        self.name_servers = name_servers(told)
        answer = await self.ask(self.name_servers[0], code, header)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestRefused(
                "name_server_unknown",
                "the address that the broker gives is not a"
                " name server: give a name server's address",
                address=self.name_servers[0],
            )
        return answer

    def _refuse_foreign(self, failure: EscrowError) -> None:
        """Raise if another kind of server listens at one of the addresses."""
        for address in self.name_servers:
            connection = self._connections.get(address)
            if connection is not None and connection.foreign_kind:
                raise not_a_broker(address, connection.foreign_kind, str(failure)) from failure


def _route(topic: str, found: TopicRoute, *, is_borrowed: bool) -> Route:
    addresses = {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in found.brokers
        if MASTER_ID in broker.addresses
    }
    writable: list[QueueAddress] = []
    readable: list[QueueAddress] = []
    for queues in sorted(found.queues, key=lambda one: one.broker_name):
        name = queues.broker_name
        if name not in addresses:
            continue
        places = [
            QueueAddress(topic, name, queue_id, addresses[name])
            for queue_id in range(max(queues.write_queue_count, queues.read_queue_count))
        ]
        if queues.permissions & WRITE:
            # A new topic gets as many queues as the default topic, so keys stay in their queues.
            writable += places[: queues.write_queue_count]
        if queues.permissions & READ and not is_borrowed:
            readable += places[: queues.read_queue_count]
    return Route(
        topic=topic,
        writable=tuple(writable),
        readable=tuple(readable),
        is_borrowed=is_borrowed,
        until=asyncio.get_running_loop().time() + ROUTE_S,
    )
