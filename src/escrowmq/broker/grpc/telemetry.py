"""Telemetry, Heartbeat and NotifyClientTermination: which gRPC clients are online, and as what.

A client opens a telemetry stream and sends its settings on it. From then on it is a live producer
of each topic that it declared, or a member of its consumer group, until the stream closes, the
client says goodbye, or it has been silent for too long. Heartbeats say that it still works.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import ok
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.broker.grpc.settings import ClientFacts, answer_of, read_settings
from escrowmq.broker.grpc.telemetry_stream import TelemetryStream
from escrowmq.broker.state.client_links import ClientDialect, ClientLink
from escrowmq.broker.state.clients import SILENT_MS_MAX, Client
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from escrowmq.broker.grpc.renewing import Renewals
    from escrowmq.broker.grpc.waiting import WaitingReceives
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.net.grpc_call import GrpcCall
    from escrowmq.broker.state.clients import Clients
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.reach import OffsetsTold
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.model.catalog import Group
    from escrowmq.protocol.grpc.messages import Settings

SESSIONS_MAX = 100_000
"""Clients with a telemetry stream."""


@dataclass(slots=True, eq=False)
class GrpcSession:
    """A client whose settings the broker knows."""

    stream: TelemetryStream
    facts: ClientFacts
    #: When the client last spoke, on the monotonic clock.
    heard_at_ms: int = 0


@dataclass(slots=True, eq=False)
class _Stranger:
    """A client without a session: offsets that the broker tells it are forgotten at once."""

    told: dict[tuple[str, int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrpcTelemetry:
    """Handles what gRPC clients say about themselves."""

    answering: Answering
    clients: Clients[ClientLink]
    clock: BrokerClock
    groups: Groups
    topics: Topics
    #: Tells remoting members of these groups that other members came or went.
    tell_changed: Callable[[Iterable[str]], None]
    #: Holds the messages of consumers that are online.
    renewals: Renewals
    waiting: WaitingReceives
    #: Checks what settings need; None without access control.
    check: Callable[[TelemetryStream, Settings], None] | None = None
    #: By client id.
    sessions: dict[str, GrpcSession] = field(default_factory=dict, init=False)

    def open(self, call: GrpcCall) -> TelemetryStream:
        """Open a telemetry stream."""
        return TelemetryStream(call, self._on_settings, self._gone)

    def _on_settings(self, stream: TelemetryStream, settings: Settings) -> None:
        # If the client is the first member of its group, the handler runs again once the group is
        # created.
        self.answering.attempt(stream, partial(self._take_settings, stream, settings))

    def _take_settings(self, stream: TelemetryStream, settings: Settings) -> None:
        if self.check is not None:
            self.check(stream, settings)
        facts = read_settings(settings)
        group = self._group_of(facts)
        if not stream.is_open:
            return
        client_id = stream.client_id
        known = self.sessions.get(client_id)
        if known is None and len(self.sessions) >= SESSIONS_MAX:
            raise RequestRefused(
                "too_many_clients", f"at most {SESSIONS_MAX} clients can be online"
            )
        if known is not None:
            self._leave(known, but=facts)
        session = GrpcSession(stream, facts)
        self.sessions[client_id] = session
        self._hear(session)
        self.renewals.come_back(client_id)
        stream.send(answer_of(settings, group, self.topics.delay_levels).SerializeToString())

    def _group_of(self, facts: ClientFacts) -> Group | None:
        """Return the consumer group of a client; raise ``CreateFirst`` to create it."""
        return None if facts.consuming is None else self.groups.welcome(facts.consuming.group)

    def _hear(self, session: GrpcSession) -> None:
        """Let the broker know a client for two more minutes."""
        stream, facts = session.stream, session.facts
        session.heard_at_ms = self.clock.monotonic_ms()
        client: Client[ClientLink] = Client(
            client_id=stream.client_id,
            connection=stream,
            language=stream.language,
            heard_at_ms=session.heard_at_ms,
            host=stream.host,
            dialect=ClientDialect.GRPC,
        )
        consuming = (
            [] if facts.consuming is None or self._group_of(facts) is None else [facts.consuming]
        )
        self.tell_changed(self.clients.hear(client, facts.topics, consuming))

    def _leave(self, session: GrpcSession, *, but: ClientFacts | None = None) -> None:
        """Forget a client as producer and consumer, except what its new settings keep (``but``)."""
        kept = () if but is None else but.topics
        client_id, facts = session.stream.client_id, session.facts
        for topic in facts.topics:
            if topic not in kept:
                self.clients.leave(client_id, topic, "")
        kept_group = but.consuming.group if but is not None and but.consuming is not None else ""
        if facts.consuming is not None and facts.consuming.group != kept_group:
            self.tell_changed(self.clients.leave(client_id, "", facts.consuming.group))

    def _gone(self, stream: TelemetryStream) -> None:
        """Forget the client of a closed stream, unless it has opened another one."""
        known = self.sessions.get(stream.client_id)
        if known is not None and known.stream is stream:
            del self.sessions[stream.client_id]
            self.renewals.leave(stream.client_id)
            self.waiting.end(stream.client_id)
        self.tell_changed(self.clients.drop(stream))

    def close(self) -> None:
        """End all streams: clients connect again once the broker is back."""
        for session in list(self.sessions.values()):
            session.stream.call.end()

    def user_of(self, client_id: str) -> str:
        """Return the user of a client with a stream; empty if there is none."""
        session = self.sessions.get(client_id)
        caller = None if session is None else session.stream.caller
        return "" if caller is None else caller.name

    def listener(self, client_id: str) -> OffsetsTold:
        """Return what remembers the offsets that the broker tells this client."""
        session = self.sessions.get(client_id)
        return _Stranger() if session is None else session.stream

    def note_producer(self, client_id: str, topic: str) -> None:
        """Note that a client sends half messages to a topic, so that it is asked about them."""
        session = self.sessions.get(client_id)
        if session is None or topic in session.facts.topics:
            return
        session.facts = session.facts._replace(topics=(*session.facts.topics, topic))
        self._hear(session)

    def sweep(self) -> None:
        """Let go what silent clients hold; they are still known if they speak again."""
        oldest_ms = self.clock.monotonic_ms() - SILENT_MS_MAX
        for client_id, session in self.sessions.items():
            if session.heard_at_ms < oldest_ms:
                self.renewals.end(client_id)
        self.renewals.sweep()

    @serves("Heartbeat")
    def beat(self, request: GrpcRequest, said: HeartbeatRequest) -> None:
        """Note that a client still works."""
        session = self.sessions.get(request.client_id)
        if session is None:
            raise RequestRefused(
                "client_type_unknown",
                "send your settings on a telemetry stream first",
                client_type=said.client_type,
            )
        self._hear(session)
        request.answer(HeartbeatResponse(status=ok()))

    @serves("NotifyClientTermination")
    def end(self, request: GrpcRequest, said: NotifyClientTerminationRequest) -> None:
        """Forget a client that says goodbye, in all of its groups."""
        del said
        session = self.sessions.pop(request.client_id, None)
        if session is not None:
            self._leave(session)
            self.renewals.end(request.client_id)
        self.waiting.end(request.client_id)
        request.answer(NotifyClientTerminationResponse(status=ok()))
