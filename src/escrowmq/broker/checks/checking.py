"""Carries out verdicts, sends back-checks to producers, and resumes parked transactions.

The broker holds no rule about when to ask: verdicts say so, and the core says whether they still
hold. A back-check goes to the producer that sent the half message, or else to another producer of
its group. It counts only once that producer's socket has taken it. The producer answers with an
ordinary END_TRANSACTION.

Verdicts come by the thousand. Back-checks wait in a line and are sent in slices, so that they do
not delay other requests. The line is bounded, and so are the unread bytes of one connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from escrowmq.broker.checks.budget import CheckBudget
from escrowmq.broker.checks.check_frames import CheckFrames
from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.state.client_links import ClientDialect
from escrowmq.broker.write.bulk import Bulk, Ends
from escrowmq.broker.write.guard import guarded
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.ids import parse_offset_message_id
from escrowmq.protocol.message.message_views import born_host
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import ResumeCheckHeader
from escrowmq.transaction.commands import (
    CheckSent,
    Decision,
    EndReply,
    Resume,
    Verdict,
    VerdictKind,
)
from escrowmq.transaction.decisions.checking import outcome_of
from escrowmq.transaction.records import Asked
from escrowmq.transaction.states import RESOLVES, State

if TYPE_CHECKING:
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Client, Clients
    from escrowmq.broker.write.writer import Writer
    from escrowmq.store.store import Store
    from escrowmq.transaction.records import NamedOrigin
    from escrowmq.transaction.table import Half

log = event_log(__name__)

ASKED_MAX = 4_096
"""Back-checks under way: in line, being sent, or sent and not yet counted."""
SLICE_MAX = 32
SLICE_BYTES_MAX = 1024 * 1024
"""Back-checks, and their bytes, that are sent in one turn of the event loop."""
SLICE_BESIDE = 2
REST_BESIDE = 32
"""While clients send messages, the size of a slice, and the pause after it as a multiple of the
time that the slice took. Without the pause, all answers would come at once."""
TRIES_MAX = 3
"""Producers to try until one of their sockets takes the back-check."""
COUNT_AGAIN_S = 0.01

Told = Callable[[VerdictOutcome], None]
ToldAll = Callable[[list[VerdictOutcome]], None]


@dataclass(slots=True, eq=False)
class _Ask:
    """One back-check under way."""

    head: int
    #: Checks that were sent when the verdict was computed; any other number makes the ask stale.
    checks_sent: int
    told: Told
    #: Producers to ask, in this order.
    producers: Iterator[Client[ClientLink]] | None = None
    tries: int = 0


@dataclass(eq=False)
class Checking:
    """Carries out verdicts, and handles RESUME_CHECK_HALF_MESSAGE."""

    store: Store
    writer: Writer
    clients: Clients[ClientLink]
    contradictions: Contradictions
    answering: Answering
    frames: CheckFrames
    budget: CheckBudget
    #: Whether a client may see and decide half messages from this origin; None without access
    #: control.
    may_answer: Callable[[ClientLink, NamedOrigin], bool] | None = None
    #: By the producer's dialect: encodes a half message's back-check, from its record and group.
    encoders: dict[ClientDialect, Callable[[Half, bytes, str], bytes]] = field(init=False)
    #: Back-checks sent since the broker started.
    asked_count: int = field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    #: By the transaction's head, so that a transaction has at most one back-check under way.
    _asks: dict[int, _Ask] = field(default_factory=dict, init=False)
    _line: deque[_Ask] = field(default_factory=deque, init=False)
    _is_scheduled: bool = field(default=False, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        encode = self.frames.encode
        self.encoders = {
            ClientDialect.JSON: partial(encode, is_binary=False),
            ClientDialect.BINARY: partial(encode, is_binary=True),
        }

    # Queries.

    def online(self, group: str) -> int:
        """Return how many producers of a group are online."""
        return self.clients.producer_count(group)

    def unreachable_count(self, prepared: Mapping[int, int]) -> int:
        """Count the transactions of ``prepared`` that have no ledger and no producer online.

        ``prepared`` counts by origin the transactions that may be back-checked.
        """
        online = set(self.clients.producer_groups())
        origins = self.store.core.names.origins.all_of(prepared)
        return sum(
            count
            for origin, count in zip(origins, prepared.values(), strict=True)
            if not (origin.ledger or origin.group in online)
        )

    # Verdicts.

    def obey(self, verdicts: Sequence[Verdict], told: ToldAll) -> None:
        """Carry out each verdict, and report the outcomes once they are durable."""
        outcomes = [VerdictOutcome.UNKNOWN] * len(verdicts)
        left = len(verdicts)

        def note(at: int, outcome: VerdictOutcome) -> None:
            nonlocal left
            outcomes[at] = outcome
            left -= 1
            if not left:
                told(outcomes)

        def ended(ends: Ends) -> None:
            for at, (verdict, end) in enumerate(zip(verdicts, ends, strict=True)):
                self._obeyed(verdict, end, partial(note, at))

        Bulk(self.writer, verdicts, ended).start()

    def _obeyed(self, verdict: Verdict, end: Decision | BaseException, told: Told) -> None:
        if not isinstance(end, Decision):
            _tell(told, outcome_of_error(end))
            return
        outcome = outcome_of(end)
        if outcome is VerdictOutcome.ASKED:
            self._get_in_line(_Ask(end.back_checks[0], verdict.checks_sent, told))
            return
        if outcome is VerdictOutcome.STALE and verdict.kind in (
            VerdictKind.COMMIT,
            VerdictKind.ROLLBACK,
        ):
            self.note_stale(verdict.half_offset, Resolution(verdict.kind.value), verdict.by)
        _tell(told, outcome)

    def note_stale(self, half_offset: int, said: Resolution, by: str) -> None:
        """Report a stale COMMIT or ROLLBACK verdict if the opposite decision already stands.

        An undecided transaction can still take either decision, so nothing is reported.
        """
        half = self.store.core.half(half_offset)
        if half is None or (half.state, said) in RESOLVES:
            return
        failed = _log_as("decision_unreadable", half_offset=half.half_offset)
        guarded(failed, self._note_contradiction, half, said, by)

    def _note_contradiction(self, half: Half, said: Resolution, by: str) -> None:
        decider, at_ms = self.store.core.table.decided_by(half)
        stands = EndReply(
            half_offset=half.half_offset, state=half.state, by=decider, at_ms=at_ms, repeated=True
        )
        self.contradictions.note(said, by, stands)

    # Back-checks.

    @property
    def room(self) -> int:
        """How many more back-checks may get in line."""
        return 0 if self._is_closed else ASKED_MAX - len(self._asks)

    def _get_in_line(self, ask: _Ask) -> None:
        head = ask.head
        if head in self._asks or self.room <= 0:
            _tell(ask.told, VerdictOutcome.BUSY)
            return
        half = self.store.core.half(head)
        if half is None or _is_stale(half, ask):
            # Verdicts of a request end together; meanwhile another request changed the transaction.
            _tell(ask.told, VerdictOutcome.STALE)
            return
        group = self.store.core.names.origins[half.origin].group
        if not self.budget.take(group, head, self.frames.clock.now_ms()):
            _tell(ask.told, VerdictOutcome.BUSY)
            return
        self._asks[head] = ask
        self._wait(ask)

    def _wait(self, ask: _Ask) -> None:
        self._line.append(ask)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_slice)

    def _send_slice(self) -> None:
        pace = self.writer.pace
        began = perf_counter()
        room_bytes = SLICE_BYTES_MAX
        for _ in range(SLICE_BESIDE if pace.is_in_use else SLICE_MAX):
            if not self._line or room_bytes <= 0:
                break
            ask = self._line.popleft()
            try:
                room_bytes -= self._send(ask)
            except Exception:
                log.exception("back_check_failed", extra={"half_offset": ask.head})
                self._end(ask, VerdictOutcome.REFUSED)
        self._is_scheduled = bool(self._line)
        if self._is_scheduled:
            self._loop.call_later(
                pace.rest_s(REST_BESIDE * (perf_counter() - began)), self._send_slice
            )

    def _send(self, ask: _Ask) -> int:
        """Send a back-check to the next producer that has room; return the bytes sent."""
        core = self.store.core
        half = core.half(ask.head)
        if half is None or _is_stale(half, ask):
            # The transaction was decided, parked or resumed while the back-check was in line.
            self._end(ask, VerdictOutcome.STALE)
            return 0
        origin = core.names.origins[half.origin]
        group = origin.group
        if not self._is_answerable(origin):
            self._end(ask, VerdictOutcome.NO_PRODUCER)
            return 0
        record = self.store.reading.record_of(half)
        if ask.producers is None:
            ask.producers = self.clients.askable(group, born_host(record))
        producer = None
        if ask.tries < TRIES_MAX:
            producer = next(
                (
                    one
                    for one in ask.producers
                    if one.connection.has_room and self._may_ask(one.connection, origin)
                ),
                None,
            )
        if producer is None:
            self._end(ask, VerdictOutcome.BUSY)
            return 0
        ask.tries += 1
        data = self.encoders[producer.dialect](half, record, group)
        producer.connection.send_and_tell(data, partial(self._sent, ask, producer))
        return len(data)

    def _may_ask(self, link: ClientLink, origin: NamedOrigin) -> bool:
        return self.may_answer is None or self.may_answer(link, origin)

    def _is_answerable(self, origin: NamedOrigin) -> bool:
        """Whether a producer is online that may be asked."""
        if self.may_answer is None:
            return self.online(origin.group) > 0
        producers = self.clients.producers(origin.group)
        return any(self._may_ask(one.connection, origin) for one in producers)

    def _sent(self, ask: _Ask, producer: Client[ClientLink], *, is_taken: bool) -> None:
        if is_taken:
            self._count(ask, CheckSent(half_offset=ask.head, client=producer.client_id))
        elif self._is_closed:
            self._end(ask, VerdictOutcome.BUSY)
        else:
            self._wait(ask)

    def _count(self, ask: _Ask, command: CheckSent) -> None:
        try:
            self.writer.put(command, lambda end: self._counted(ask, end))
        except Unavailable as full:
            if full.code != "inbox_full":
                self._end(ask, VerdictOutcome.UNKNOWN)
                return
            # The producer was asked, so the check must be counted.
            self._loop.call_later(COUNT_AGAIN_S, self._count, ask, command)

    def _counted(self, ask: _Ask, end: Decision | BaseException) -> None:
        # If the answer came first, the core records no check, but the producer was asked.
        is_durable = isinstance(end, Decision)
        self.asked_count += is_durable
        asked = end.records[0] if isinstance(end, Decision) and end.records else None
        if isinstance(asked, Asked):
            self.budget.counted(ask.head, asked, self.frames.clock.now_ms())
        else:
            self.budget.release(ask.head)
        self._end(ask, VerdictOutcome.ASKED if is_durable else VerdictOutcome.UNKNOWN)

    def _end(self, ask: _Ask, outcome: VerdictOutcome) -> None:
        del self._asks[ask.head]
        if outcome is not VerdictOutcome.ASKED:
            self.budget.release(ask.head)
        _tell(ask.told, outcome)

    def close(self) -> None:
        """Send no more back-checks."""
        self._is_closed = True
        while self._line:
            self._end(self._line.popleft(), VerdictOutcome.BUSY)

    # Resuming.

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, request: Request) -> None:
        """Resume the back-checks of a parked transaction, starting again at the first one."""
        header = request.header(ResumeCheckHeader)
        _, log_offset = parse_offset_message_id(header.offset_message_id)
        row = self.store.table.row_at(log_offset)
        if row is None:
            raise RequestRefused(
                "message_unknown",
                "no half message is stored there",
                message_id=header.offset_message_id,
            )
        by = request.by
        self.answering.submit(
            request,
            Resume(half_offset=row, by=by),
            lambda _decision: request.answer(ResponseCode.SUCCESS),
        )


def outcome_of_error(error: BaseException) -> VerdictOutcome:
    """Return BUSY for a command that never began, and UNKNOWN for any other error."""
    return VerdictOutcome.BUSY if isinstance(error, Unavailable) else VerdictOutcome.UNKNOWN


def _is_stale(half: Half, ask: _Ask) -> bool:
    """Whether the transaction has changed since the verdict on it was computed."""
    return (half.state, half.checks_sent) != (State.PREPARED, ask.checks_sent)


def _tell(told: Told, outcome: VerdictOutcome) -> None:
    guarded(_log_as("outcome_not_told", outcome=outcome.value), told, outcome)


def _log_as(event: str, **facts: object) -> Callable[[Exception], None]:
    return lambda error: log.error(event, extra=facts, exc_info=error)
