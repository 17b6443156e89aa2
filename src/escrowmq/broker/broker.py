"""The broker: the state that handlers share, and the dispatch of frames to handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from escrowmq.broker.administering import Administering
from escrowmq.broker.awaiting import Awaiting
from escrowmq.broker.bulk import Bulk, Ends
from escrowmq.broker.capacity import Capacities
from escrowmq.broker.cataloging import Cataloging
from escrowmq.broker.checking import Checking
from escrowmq.broker.clients import Clients
from escrowmq.broker.contradictions import Contradictions
from escrowmq.broker.counting import Counts
from escrowmq.broker.ending import Ending
from escrowmq.broker.expiring import Expiring
from escrowmq.broker.group_tools import GroupTools
from escrowmq.broker.groups import Groups
from escrowmq.broker.heartbeats import Heartbeats
from escrowmq.broker.ledger_reports import LedgerReports
from escrowmq.broker.messages import Messages
from escrowmq.broker.meta_writing import MetaWriting
from escrowmq.broker.offsets import Offsets
from escrowmq.broker.own_admin import OwnAdmin
from escrowmq.broker.own_attempts import OwnAttempts
from escrowmq.broker.own_facts import OwnFacts
from escrowmq.broker.own_finding import OwnFinding
from escrowmq.broker.own_ledgers import OwnLedgers
from escrowmq.broker.own_reading import OwnReading
from escrowmq.broker.own_records import OwnRecords
from escrowmq.broker.own_verdicts import OwnVerdicts
from escrowmq.broker.own_writing import OwnWriting
from escrowmq.broker.pulling import Pulling
from escrowmq.broker.querying import Querying
from escrowmq.broker.queues import Queues
from escrowmq.broker.reach import Reach
from escrowmq.broker.relaying import Relaying
from escrowmq.broker.releasing import Releasing
from escrowmq.broker.requests import Handler, Handlers, Request
from escrowmq.broker.retaining import Retaining
from escrowmq.broker.retrying import Retrying
from escrowmq.broker.routes import Routes
from escrowmq.broker.sending import Sending
from escrowmq.broker.topics import Topics
from escrowmq.broker.wanting import Wanted
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.codes import NOT_KNOWN_HERE, ResponseCode
from escrowmq.protocol.remoting import OPAQUE_MAX
from escrowmq.store.reader import Reader
from escrowmq.store.retention import removable_below
from escrowmq.transaction.commands import Decision

if TYPE_CHECKING:
    from escrowmq.broker.broker_clock import BrokerClock
    from escrowmq.broker.config import BrokerConfig, TopicsConfig
    from escrowmq.broker.connection import Connection
    from escrowmq.broker.inbox import Waiting
    from escrowmq.broker.status import Vitals
    from escrowmq.broker.writer import Writer
    from escrowmq.protocol.remoting import Frame
    from escrowmq.store.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.commands import Command

MADE_MAX = 1_024
"""Topics and groups that one request can create."""

Decided = Callable[[Decision], None]
Refused = Callable[[Request, RequestRefused], None]


class Part(Protocol):
    """A part of the broker that handles some request codes."""

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        ...


class Broker:
    """State shared by all handlers. Use it from one event loop only."""

    def __init__(  # noqa: PLR0917 - called in one place only
        self,
        store: Store,
        writer: Writer,
        meta: Meta,
        clock: BrokerClock,
        config: BrokerConfig,
        topics: TopicsConfig,
        address: str,
        store_host: bytes,
        vitals: Vitals,
    ) -> None:
        self.store = store
        self.writer = writer
        self.meta = meta
        #: Durable topics, groups and settings.
        self.catalog = store.catalog
        self.meta_writing = MetaWriting(meta, store)
        self.clock = clock
        self.config = config
        self.vitals = vitals
        self.counts = Counts(store)
        self.retaining = self._retaining()
        self.reader = Reader(store)
        self.queues = Queues(store, self.reader, store_host)
        self.reach = Reach(store, meta, self._broadcasts)
        self.topics = Topics(self.catalog, topics)
        self.groups = Groups(self.catalog, topics)
        self.messages = Messages(self)
        self.clients: Clients[Connection] = Clients()
        #: The address that the broker tells clients, and the host that stored messages name.
        self.address = address
        self.store_host = store_host
        self._opaque = count(1)
        self.heartbeats = Heartbeats(self)
        self._handlers: dict[int, Handler] = {}
        self.contradictions = Contradictions()
        self.ledger_reports = LedgerReports()
        self.capacities = Capacities(self)
        self.expiring = Expiring(self)
        self.checking = Checking(self)
        self.awaiting = Awaiting(self)
        self.pulling = Pulling(self)
        self.offsets = Offsets(self)
        self.relaying = Relaying(self)
        self.releasing = Releasing(store, writer, clock)
        for part in self._parts():
            self._handlers.update(part.handlers())
        self.counts.rpcs.codes = self._handlers
        writer.on_visible = self.pulling.grown
        self._cataloging = Cataloging(self)
        writer.on_durable = self._durable

    def _parts(self) -> tuple[Part, ...]:
        """Return all parts that handle requests."""
        return (
            Sending(self),
            Ending(self),
            self.checking,
            self.heartbeats,
            Routes(self),
            self.pulling,
            self.offsets,
            Retrying(self),
            Querying(self),
            Administering(self),
            GroupTools(self),
            self.relaying,
            OwnWriting(self),
            OwnVerdicts(self),
            OwnFacts(self),
            OwnAttempts(self),
            self.awaiting,
            OwnRecords(self),
            OwnReading(self),
            OwnFinding(self),
            OwnLedgers(self),
            OwnAdmin(self),
        )

    def _retaining(self) -> Retaining:
        store = self.store

        def now_ms() -> int:
            return self.clock.deletion_now_ms(store.config.retention_ms)

        def may_delete() -> bool:
            # A run takes long, so check the clock again: a doubtful clock stops further deletions.
            return removable_below(store, now_ms()) > store.log.start

        return Retaining(store, self.writer, now_ms, may_delete)

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Answer a frame, now or later."""
        if frame.is_response:
            self.relaying.answered(connection, frame)
            return
        request = Request(connection, frame, self.counts.rpcs)
        handler = self._handlers.get(frame.code)
        if handler is None:
            request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {frame.code} {NOT_KNOWN_HERE}",
            )
            return
        self.attempt(request, partial(handler, request))

    def attempt(self, request: Request, handle: Callable[[], None], made: int = 0) -> None:
        """Handle a request. If it wants a topic or group, create that first and handle it again."""
        try:
            handle()
        except Wanted as wanted:
            self._make(request, wanted, handle, made)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the others
            request.decline(error)

    def _make(
        self, request: Request, wanted: Wanted, handle: Callable[[], None], made: int
    ) -> None:
        def tell(end: Decision | BaseException) -> None:
            request.connection.settle()
            if not isinstance(end, Decision):
                request.decline(end)
            elif end.refused is not None:
                request.decline(end.refused)
            else:
                self.attempt(request, handle, made + 1)

        if made >= MADE_MAX:
            request.decline(
                RequestRefused("too_many_topics", "send to fewer new topics at a time", made=made)
            )
            return
        try:
            self.writer.put(wanted.command, tell, request.connection)
        except EscrowError as error:
            request.decline(error)
            return
        request.connection.owe()

    def _durable(self, batch: list[Waiting], decisions: list[Decision]) -> None:
        self.counts.durable(batch, decisions)
        self._cataloging.durable(decisions)

    def _broadcasts(self, group: str) -> bool:
        online = self.clients.consumers(group)
        return online is not None and online.said.is_broadcast

    def submit(
        self,
        request: Request,
        command: Command,
        decided: Decided,
        refused: Refused = Request.decline,
    ) -> None:
        """Answer a request once its command is durable."""

        def tell(end: Decision | BaseException) -> None:
            request.connection.settle()
            try:
                if not isinstance(end, Decision):
                    request.decline(end)
                elif end.refused is not None:
                    refused(request, end.refused)
                else:
                    decided(end)
            except Exception as error:  # noqa: BLE001 - the writer must go on
                request.decline(error)

        self.writer.put(command, tell, request.connection)
        request.connection.owe()

    def submit_all(
        self, request: Request, commands: Sequence[Command], decided: Callable[[Ends], None]
    ) -> None:
        """Answer a request once each of its commands is durable, refused, or failed."""

        def tell(ends: Ends) -> None:
            request.connection.settle()
            try:
                failed = [end for end in ends if not isinstance(end, Decision)]
                if ends and len(failed) == len(ends):
                    request.decline(failed[0])
                else:
                    decided(ends)
            except Exception as error:  # noqa: BLE001 - the writer must go on
                request.decline(error)

        request.connection.owe()
        Bulk(self.writer, commands, tell).start()

    def look(self, request: Request, answer: Callable[[], None]) -> None:
        """Answer a query between two batches, when memory holds exactly what is durable."""

        def look() -> None:
            request.connection.settle()
            try:
                if self.store.failure is None:
                    answer()
                else:
                    request.decline(self.store.finished())
            except Exception as error:  # noqa: BLE001 - the writer must go on
                request.decline(error)

        self.writer.between(look)
        request.connection.owe()

    def next_opaque(self) -> int:
        """Return the number for the broker's next own request."""
        return next(self._opaque) & OPAQUE_MAX
