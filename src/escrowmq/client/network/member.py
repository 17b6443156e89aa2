"""A client as brokers know it: its id, its groups, its heartbeats and its request handlers.

From its start on, the client registers with every broker of the cluster, not only with those that
it has sent to, because a broker back-checks only registered clients. For the same reason a lost
connection is reopened soon, even if no call needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.client.network.routing import Network, new_client_id
from escrowmq.client.network.trying import kept
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.protocol.remoting.bodies import encode_body, read_body
from escrowmq.protocol.remoting.client_bodies import (
    ConsumerMembership,
    Heartbeat,
    ProducerMembership,
)
from escrowmq.protocol.remoting.cluster_bodies import MASTER_ID, ClusterInfo
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import UnregisterHeader
from escrowmq.protocol.remoting.frames import encode_response
from escrowmq.protocol.remoting.headers import Header

if TYPE_CHECKING:
    from escrowmq.client.network.connection import BrokerConnection
    from escrowmq.model.credentials import Credentials
    from escrowmq.model.tls import Tls
    from escrowmq.protocol.remoting.frames import RemotingFrame

log = event_log(__name__)

BEAT_S = 30.0
#: Wait before the next try to reach a lost broker; it doubles from the first to the last.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
#: How long ``close`` waits for heartbeats in flight before it unregisters.
LAST_BEAT_S = 3.0
#: Response to a request that has no handler.
UNANSWERED = "the client is EscrowMQ's SDK, which does not answer request code {code}"
#: Interval at which the log repeats that a broker or the name servers are still unreachable.
LOG_AGAIN_S = 60.0

Handler = Callable[["BrokerConnection", "RemotingFrame"], None]


class Member:
    """One client. Use it from one event loop only."""

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        client_id: str = "",
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.client_id = client_id or new_client_id()
        self.network = Network(servers, self._asked, self._opened, tls, credentials)
        self.producer_groups: set[str] = set()
        #: Memberships by consumer group.
        self.consuming: dict[str, ConsumerMembership] = {}
        #: Handlers of brokers' requests, by request code; other codes are answered as unsupported.
        self.handlers: dict[int, Handler] = {}
        self._brokers: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Heartbeats without a response yet.
        self._beating: set[asyncio.Task[RemotingFrame]] = set()
        self._is_closing = False
        self._limit = LogLimit(log, burst=1, window_s=LOG_AGAIN_S)

    @property
    def brokers(self) -> list[str]:
        """Addresses of all brokers that the name servers know."""
        return sorted(self._brokers)

    async def start(self) -> None:
        """Register with every broker; raise Unavailable if no name server answers."""
        await self.find_brokers()
        self._tasks[""] = asyncio.ensure_future(self._look_for_brokers())

    async def find_brokers(self) -> None:
        """Read the list of brokers from the name servers, and keep a connection to each."""
        answer = await self.network.ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, Header())
        info = read_body(ClusterInfo, refuse_unless_done(answer).body)
        found = {
            one.addresses[MASTER_ID] for one in info.brokers.values() if MASTER_ID in one.addresses
        }
        for address in self._brokers - found:
            self._tasks.pop(address).cancel()
        new = found - self._brokers
        self._brokers = found
        for address in new:
            self._tasks[address] = asyncio.ensure_future(self._stay_known(address))

    async def beat(self) -> None:
        """Send heartbeats to all brokers now; an unreachable one gets it when it is back."""
        if self._is_closing:
            return
        beats = (self._beat(connection) for connection in self._known())
        await asyncio.gather(*beats, return_exceptions=True)

    async def close(self) -> None:
        """Unregister and close all connections."""
        self._is_closing = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._beating:
            # Apache's broker may process UNREGISTER before a heartbeat, and then knows us for two
            # minutes.
            await asyncio.wait(self._beating, timeout=LAST_BEAT_S)
        goodbyes = [
            connection.ask(
                RequestCode.UNREGISTER_CLIENT,
                UnregisterHeader(
                    client_id=self.client_id, producer_group=producer, consumer_group=consumer
                ),
            )
            for connection in self._known()
            for producer, consumer in (
                *((group, "") for group in self.producer_groups),
                *(("", group) for group in self.consuming),
            )
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)
        await self.network.close()

    def _known(self) -> list[BrokerConnection]:
        return [one for one in self.network.open_connections() if one.address in self._brokers]

    async def _look_for_brokers(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.find_brokers()
            except EscrowError as error:
                facts = {"addresses": list(self.network.name_servers), "why": str(error)}
                self._limit.warning("name_server_away", None, facts)
            else:
                if self._limit.forget("name_server_away", None):
                    log.info("name_server_back", extra={"brokers": self.brokers})

    async def _stay_known(self, address: str) -> None:
        """Send heartbeats while the broker is there; reconnect while it is not."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                connection = await self.network.connection(address)
                await self._beat(connection)
                wait_s = RETRY_FIRST_S
                if self._limit.forget("broker_away", address):
                    log.info("broker_back", extra={"address": address})
                await asyncio.wait((connection.lost,), timeout=BEAT_S)
            except EscrowError as error:
                self._limit.warning("broker_away", address, {"address": address, "why": str(error)})
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)

    async def _beat(self, connection: BrokerConnection) -> None:
        beat = connection.ask(RequestCode.HEART_BEAT, body=self._heartbeat())
        refuse_unless_done(await asyncio.shield(kept(self._beating, beat)))

    def _heartbeat(self) -> bytes:
        beat = Heartbeat(
            client_id=self.client_id,
            producers=tuple(ProducerMembership(group=one) for one in sorted(self.producer_groups)),
            consumers=tuple(self.consuming.values()),
        )
        return encode_body(beat)

    def _opened(self, connection: BrokerConnection) -> None:
        """Send a heartbeat first on each new connection, so that the broker knows us."""
        if connection.address in self._brokers:
            connection.tell(RequestCode.HEART_BEAT, body=self._heartbeat())

    def _asked(self, connection: BrokerConnection, frame: RemotingFrame) -> None:
        handler = self.handlers.get(frame.code)
        if handler is None:
            # A tool, such as mqadmin consumerStatus, waits for this response through the broker.
            if not frame.is_one_way:
                remark = UNANSWERED.format(code=frame.code)
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                connection.reply(encode_response(frame, code, remark=remark))
            return
        try:
            handler(connection, frame)
        except Exception:
            # One odd request must not close the connection that all callers share.
            facts = {"code": frame.code, "address": connection.address}
            log.exception("request_failed", extra=facts)
