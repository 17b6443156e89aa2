"""The broker: builds its parts, gives each what it uses, and dispatches frames to handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.access.stored_facts import StoredFacts
from escrowmq.broker.checks.budget import CheckBudget
from escrowmq.broker.checks.check_frames import CheckFrames
from escrowmq.broker.checks.checking import Checking
from escrowmq.broker.checks.contradictions import Contradictions
from escrowmq.broker.checks.endings import Endings
from escrowmq.broker.checks.leading import Leadership
from escrowmq.broker.checks.ledger_passes import LedgerPasses, LookUpPort
from escrowmq.broker.checks.obeying import VerdictExecutor
from escrowmq.broker.checks.rounds import SettleRounds
from escrowmq.broker.native.admin import NativeAdmin, NativeHands
from escrowmq.broker.native.attempts import NativeAttempts
from escrowmq.broker.native.awaiting import Awaiting
from escrowmq.broker.native.calls import CallHandling
from escrowmq.broker.native.comparisons import Comparisons
from escrowmq.broker.native.facts import NativeFacts
from escrowmq.broker.native.finding import NativeFinding
from escrowmq.broker.native.heartbeats import PipelineHeartbeats
from escrowmq.broker.native.ledgers import NativeLedgers
from escrowmq.broker.native.log_lists import NativeRecords
from escrowmq.broker.native.reading import NativeReading
from escrowmq.broker.native.state_listing import StateListing
from escrowmq.broker.native.status import Vitals, status
from escrowmq.broker.native.users import NativeUsers
from escrowmq.broker.native.verdicts import NativeVerdicts
from escrowmq.broker.native.writing import NativeWriting
from escrowmq.broker.net.admitting import RemotingAdmission, check_codes
from escrowmq.broker.net.answering import Answering
from escrowmq.broker.net.requests import Handler, Request, handlers_of
from escrowmq.broker.pop.dead_letters import DeadLetters
from escrowmq.broker.pop.deliveries import Deliveries
from escrowmq.broker.pop.places import PopPlaces
from escrowmq.broker.pop.service import PopService
from escrowmq.broker.pop.taking import PopTaking
from escrowmq.broker.rocketmq.administering import Administering
from escrowmq.broker.rocketmq.assigning import Assigning
from escrowmq.broker.rocketmq.ending import EndTransactionRequests
from escrowmq.broker.rocketmq.group_tools import GroupTools
from escrowmq.broker.rocketmq.heartbeats import Heartbeats
from escrowmq.broker.rocketmq.offsets import OffsetRequests, QueueLocks
from escrowmq.broker.rocketmq.popping import PopRequests
from escrowmq.broker.rocketmq.pulling import Pulling
from escrowmq.broker.rocketmq.querying import Querying
from escrowmq.broker.rocketmq.recalling import Recalling
from escrowmq.broker.rocketmq.relaying import GroupNotices, Relaying
from escrowmq.broker.rocketmq.retrying import Retrying
from escrowmq.broker.rocketmq.routes import Routes
from escrowmq.broker.rocketmq.sending import Sending
from escrowmq.broker.state.capacity import Capacities
from escrowmq.broker.state.cataloging import Cataloging
from escrowmq.broker.state.client_links import ClientLink
from escrowmq.broker.state.clients import Clients
from escrowmq.broker.state.counting import BrokerCounts
from escrowmq.broker.state.expiring import Expiring, Uses
from escrowmq.broker.state.group_offsets import GroupOffsets
from escrowmq.broker.state.ledger_reports import LedgerReports, PipelineSigns
from escrowmq.broker.state.long_polls import AllLongPolls
from escrowmq.broker.state.messages import REGION, Messages
from escrowmq.broker.state.pipeline_life import PipelineLife
from escrowmq.broker.state.queues import Queues
from escrowmq.broker.state.reach import Reach
from escrowmq.broker.state.recall_handles import RecallHandles, Recalls
from escrowmq.broker.state.transaction_lookup import named_half
from escrowmq.broker.write.meta_writing import MetaWriting
from escrowmq.broker.write.releasing import Releasing
from escrowmq.broker.write.retaining import Retaining
from escrowmq.protocol.remoting.codes import NOT_KNOWN_HERE, ResponseCode
from escrowmq.protocol.remoting.templates import SentAnswers
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.retention.retention import removable_below

if TYPE_CHECKING:
    from escrowmq.broker.access.gate import AccessGate
    from escrowmq.broker.access.secret_box import SecretKeeper
    from escrowmq.broker.config import Identity
    from escrowmq.broker.grpc.place import GrpcPlace
    from escrowmq.broker.grpc.pulling import GrpcPulling
    from escrowmq.broker.grpc.telemetry import GrpcTelemetry
    from escrowmq.broker.net.connection import ClientConnection
    from escrowmq.broker.net.grpc_call import GrpcMethods
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.inbox import QueuedCommand
    from escrowmq.broker.write.writer import Writer
    from escrowmq.protocol.remoting.frames import RemotingFrame
    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.commands import Decision


@dataclass(kw_only=True, eq=False)
class Broker:
    """All parts of one broker; no part knows the broker. Use it from one event loop only."""

    store: Store
    writer: Writer
    meta: Meta
    clock: BrokerClock
    topics: Topics
    groups: Groups
    identity: Identity
    vitals: Vitals
    #: Secret with which the broker signs ids that clients send back, such as transaction ids.
    key: bytes = field(repr=False)
    #: Seals the secrets of users.
    secrets: SecretKeeper = field(repr=False)
    #: None without access control.
    gate: AccessGate | None = None
    #: Parts for gRPC clients; None until ``serve_grpc`` makes them.
    grpc_pulling: GrpcPulling | None = field(default=None, init=False)
    telemetry: GrpcTelemetry | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        store, writer, meta, clock = self.store, self.writer, self.meta, self.clock
        topics, groups, identity = self.topics, self.groups, self.identity
        #: Durable topics, groups and settings.
        self.catalog = catalog = store.catalog
        self.counts = BrokerCounts(store)
        self.signs = PipelineSigns()
        self.contradictions = Contradictions()
        self.ledger_reports = LedgerReports()
        self.comparisons = Comparisons(clock)
        self.life = PipelineLife()
        self.leadership = Leadership(store.core.policy, clock, self.life, self.ledger_reports)
        self.clients: Clients[ClientLink] = Clients()
        clients = self.clients
        self.notices = GroupNotices(clients)
        self.locks = QueueLocks(clock)
        self.meta_writing = MetaWriting(meta, store)
        self.reader = StoreReader(store)
        self.queues = queues = Queues(store, self.reader, identity.store_host)
        self.reach = reach = Reach(store, meta, clients.is_broadcast)
        self.capacities = Capacities(store=store, meta=meta)
        self.retaining = self._retaining()
        self.releasing = Releasing(store, writer, clock)
        self.answering = Answering(store, writer)
        self.endings = Endings(self.answering, self.contradictions)
        self.recall_handles = RecallHandles(identity.name, self.key)
        self.recalls = Recalls(self.recall_handles, store, topics)
        self.awaiting = Awaiting(store=store, writer=writer, clock=clock, signs=self.signs)
        self.uses = uses = Uses(core=store.core, clients=clients)
        self.expiring = Expiring(uses, store, writer, clock, topics, groups, meta, queues)
        frames = CheckFrames(store, clock, identity, self.notices.next_opaque)
        budget = CheckBudget(store.core.policy)
        self.checking = Checking(
            store, writer, clients, self.contradictions, self.answering, frames, budget
        )
        self.executor = VerdictExecutor(writer, self.checking, self.counts)
        self.rounds = SettleRounds(store, writer, clock, self.leadership, self.executor)
        #: Lets requests in; None without access control.
        self.admission = self._admission()
        self.messages = Messages(topics=topics, clock=clock, cluster=identity.cluster)
        self.popping = self._popping()
        places = self.popping.places
        self.offsets = GroupOffsets(catalog, meta, queues, reach, uses, places.is_popped)
        self.pulling = Pulling(
            groups, topics, clients, queues, self.offsets, places, reach, uses, self.counts
        )
        self.polls = AllLongPolls(self.pulling.polls, self.popping.polls)
        self.heartbeats = Heartbeats(catalog, clients, clock, groups, topics, self.notices)
        self.relaying = Relaying(
            clients=clients, reader=self.reader, next_opaque=self.notices.next_opaque
        )
        self._cataloging = Cataloging(meta, groups, self.pulling, self.popping, reach, self.counts)
        calls = CallHandling(clock, self.answering, self.admission)
        self._handlers: dict[int, Handler] = {}
        for part in (*self._parts_of_clients(), *self._parts_of_tools()):
            self._handlers.update(handlers_of(part))
        for part in (*self._native_parts(), *self._native_lists()):
            self._handlers.update(calls.handlers_of(part))
        self._guard()
        self.counts.rpcs.codes = self._handlers
        self._begin_with(writer)

    def _begin_with(self, writer: Writer) -> None:
        writer.on_visible = self._visible
        writer.on_durable = self._durable
        if writer.following is not None:
            writer.following.begin()

    def _admission(self) -> RemotingAdmission | None:
        if self.gate is None:
            return None
        self.checking.may_answer = self.gate.may_answer
        find = partial(named_half, self.store, self.reader)
        facts = StoredFacts(self.store, self.reader, self.clients, find)
        return RemotingAdmission(self.gate, facts)

    def _guard(self) -> None:
        """Let no handler run before its request's needs are met."""
        check_codes(self._handlers)
        if self.admission is not None:
            guarded = self.admission.guarded
            self._handlers = {code: guarded(code, one) for code, one in self._handlers.items()}

    # Parts. Each has another type, so the type checker sees a part in a wrong place.

    def _retaining(self) -> Retaining:
        store = self.store

        def now_ms() -> int:
            return self.clock.deletion_now_ms(store.config.retention_ms)

        def may_delete() -> bool:
            # A run takes long, so check the clock again: a doubtful clock stops further deletions.
            return removable_below(store, now_ms()) > store.log.start

        return Retaining(store, self.writer, now_ms, may_delete)

    def _popping(self) -> PopService:
        store, writer, clock, queues = self.store, self.writer, self.clock, self.queues
        places = PopPlaces(store, writer, queues, self.meta)
        taking = PopTaking(store, queues, places, self.counts)
        dead_letters = DeadLetters(writer, clock, queues, self.topics)
        return PopService(
            store,
            writer,
            clock,
            self.groups,
            self.topics,
            self.uses,
            places,
            taking,
            Deliveries(store, places),
            dead_letters,
        )

    def _parts_of_clients(self) -> tuple[object, ...]:
        """Return the parts that handle requests of RocketMQ's clients."""
        answering, clock, groups, topics = self.answering, self.clock, self.groups, self.topics
        identity = self.identity
        sent = SentAnswers(identity.store_host, REGION)
        return (
            Sending(
                answering,
                groups,
                topics,
                clock,
                self.messages,
                self.locks,
                identity,
                sent,
                self.store,
                self.recall_handles,
            ),
            EndTransactionRequests(self.endings),
            Recalling(answering, self.recalls),
            Retrying(answering, groups, topics, clock, self.reader),
            Routes(self.catalog, topics, self.uses, identity),
            self.checking,
            self.heartbeats,
            self.pulling,
            PopRequests(self.popping),
            Assigning(answering, groups, topics, self.catalog, self.clients, identity),
            self.locks,
        )

    def _parts_of_tools(self) -> tuple[object, ...]:
        """Return the parts that handle requests of RocketMQ's tools."""
        answering, clock, identity = self.answering, self.clock, self.identity
        groups, topics, queues, meta = self.groups, self.topics, self.queues, self.meta
        writing = self.meta_writing
        return (
            Querying(self.store, self.reader),
            Administering(answering, self.store, clock, topics, queues, self.reach, identity),
            GroupTools(answering, groups, topics, clock, self.clients, meta, queues, identity),
            OffsetRequests(
                self.offsets, topics, groups, writing, self.notices, identity, self.popping.places
            ),
            self.relaying,
        )

    def _native_parts(self) -> tuple[object, ...]:
        """Return the parts that handle native requests, except lists."""
        store, clock, answering = self.store, self.clock, self.answering
        contradictions = self.contradictions
        return (
            NativeWriting(
                answering, clock, self.messages, self.awaiting, contradictions, self.identity
            ),
            NativeVerdicts(store, clock, self.executor, self.signs, self.rounds.looks_up),
            PipelineHeartbeats(clock, self.life, self.signs, self.leadership),
            NativeHands(
                answering, store, self.reader, self.clients, clock, self.topics, contradictions
            ),
            NativeUsers(answering, store, self.secrets),
            NativeAttempts(store),
            NativeLedgers(store, clock, self.ledger_reports),
            self.comparisons,
            self.awaiting,
        )

    def _native_lists(self) -> tuple[object, ...]:
        """Return the parts that answer native lists and questions about what the broker holds."""
        store, reader, clients, clock = self.store, self.reader, self.clients, self.clock
        meta, writing, topics = self.meta, self.meta_writing, self.topics
        return (
            NativeFacts(partial(status, self), store, clock, self.checking, self.writer, topics),
            StateListing(self.writer),
            NativeRecords(store=store, reader=reader, clients=clients),
            NativeReading(
                store=store, reader=reader, topics=topics, uses=self.uses, queues=self.queues
            ),
            NativeFinding(store, reader),
            NativeAdmin(
                store,
                reader,
                meta,
                writing,
                clients,
                clock,
                topics,
                self.groups,
                self.popping.places,
            ),
        )

    def look_up_with(self, process: LookUpPort) -> LedgerPasses:
        """Let the broker's rounds look up ledgers through this process."""
        passes = LedgerPasses(
            self.store, self.writer, self.clock, self.executor, self.ledger_reports, process
        )
        self.rounds.ledger_work = passes
        return passes

    def serve_grpc(self, place: GrpcPlace) -> GrpcMethods:
        """Return the methods for RocketMQ's gRPC clients, which find the broker at this place."""
        from escrowmq.broker.grpc_making import make_grpc

        return make_grpc(self, place)

    def user_of(self, client_id: str) -> str:
        """Return the user of a gRPC client that is online; empty if there is none."""
        return "" if self.telemetry is None else self.telemetry.user_of(client_id)

    def forget_silent_clients(self) -> None:
        """Forget clients that were silent for too long, and let go what they hold."""
        self.heartbeats.expire()
        if self.telemetry is not None:
            self.telemetry.sweep()

    def drain(self) -> None:
        """Answer the long polls, and end the telemetry streams, before the broker stops."""
        self.polls.end()
        if self.telemetry is not None:
            self.telemetry.close()

    def drop(self, connection: ClientConnection) -> None:
        """Forget what a closed connection waits for, and its clients."""
        self.polls.drop(connection)
        self.awaiting.drop(connection)
        self.heartbeats.drop(connection)

    # Frames and batches.

    def handle(self, connection: ClientConnection, frame: RemotingFrame) -> None:
        """Answer a client's request, now or later; pass a client's response on."""
        if frame.is_response:
            self.relaying.answered(connection, frame)
            return
        request = Request(connection, frame, self.counts.rpcs)
        if self.admission is not None and not self.admission.admit(request):
            return
        handler = self._handlers.get(frame.code)
        if handler is None:
            request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {frame.code} {NOT_KNOWN_HERE}",
            )
            return
        self.answering.attempt(request, partial(handler, request))

    def _durable(self, batch: list[QueuedCommand], decisions: list[Decision]) -> None:
        self.counts.durable(batch, decisions)
        self.checking.budget.durable(decisions, self.clock.now_ms())
        self._cataloging.durable(decisions)

    def _visible(self, numbers: set[int]) -> None:
        if self.polls.waiting:
            queues = [self.store.queues[number] for number in numbers]
            self.polls.grown([(queue.topic, queue.queue_id) for queue in queues])

    def end_polls(self) -> None:
        """Answer the long polls, and the questions to consumers, whose time is up."""
        self.pulling.look_at_views(self.store.durable_end)
        self.pulling.polls.give_up()
        self.popping.tick()
        self.awaiting.tick()
        self.relaying.give_up()
        if self.grpc_pulling is not None:
            self.grpc_pulling.polls.give_up()
