"""Answers a broker's probes and look-ups, each exactly once and within its time limit.

Each ledger that is being asked has one thread, so a slow database does not delay the others. A
thread that a database driver holds beyond the limit is abandoned: its request is answered without
it, and further requests for that ledger are answered at once until the thread returns.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from escrowmq.client.ledger.checks import LATE, LedgerAnswer
from escrowmq.look_up.inquiries import InquiredRows, Inquiries
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import SLOW, WAIT_S, KnownLedgers, Ledgers
from escrowmq.model.errors import ProtocolViolation
from escrowmq.model.event_log import event_log
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.protocol.look_up.messages import (
    REQUESTS_MAX,
    Known,
    LookUpAnswer,
    LookUpReply,
    LookUpRequest,
    Probe,
    ProbedLedger,
)
from escrowmq.protocol.message.limits import NAME_CHARS_MAX, SHOWN_CHARS_MAX

#: Maximum number of threads that ask ledgers, one for each ledger.
THREADS_MAX = REQUESTS_MAX
#: How long a thread may take to notice that its time is over, before it is abandoned.
GRACE_S = 1.0

BUSY = "look_up_busy"
FAILED = "look_up_failed"

log = event_log(__name__)


@dataclass(slots=True, eq=False)
class _LookUpJob:
    """A look-up without an answer."""

    request: LookUpRequest
    until_s: float
    #: Whether the look-up was answered as overdue, before its thread was done with it.
    is_abandoned: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    """The look-ups in one ledger. A lane exists while its thread runs."""

    waiting: deque[_LookUpJob] = field(default_factory=deque)
    #: The look-up that the thread works on.
    current: _LookUpJob | None = None


class LookUpDesk:
    """Takes requests from one thread; calls ``reply`` from any thread."""

    def __init__(self, urls: Mapping[str, str], reply: Callable[[LookUpReply], None]) -> None:
        self._ledgers = Ledgers({name: LedgerConfig(url=url) for name, url in urls.items()})
        self._reply = reply
        self._known = KnownLedgers()
        #: Set when the first probe has ended.
        self._has_probed = threading.Event()
        #: Numbers of probes to answer; None is the first probe, which has no number.
        self._probes: queue.Queue[int | None] = queue.Queue(REQUESTS_MAX)
        self._probes.put(None)
        #: Guards ``_lanes`` and ``_waiting``.
        self._lock = threading.Lock()
        #: By ledger UUID: the lanes whose threads run.
        self._lanes: dict[str, _Lane] = {}
        #: By request number: the look-ups without an answer.
        self._waiting: dict[int, _LookUpJob] = {}
        threading.Thread(target=self._probe, name="escrowmq-probe", daemon=True).start()

    def take(self, call: Probe | LookUpRequest) -> None:
        """Answer a request now or from a thread.

        Raises:
            ProtocolViolation: ``look_up_malformed``, if the broker sends too many requests at once.
        """
        if isinstance(call, LookUpRequest):
            self._take_look_up(call)
            return
        try:
            self._probes.put_nowait(call.number)
        except queue.Full:
            raise _too_many() from None

    def answer_overdue(self) -> float | None:
        """Answer overdue look-ups; return the seconds until the next is overdue, or None."""
        now_s = time.monotonic()
        with self._lock:
            waiting = list(self._waiting.values())
        for one in waiting:
            if one.until_s + GRACE_S <= now_s:
                one.is_abandoned = True
                self._answer_all(one, LATE.reason, "the database does not answer")
        left = [one.until_s + GRACE_S - now_s for one in waiting if one.until_s + GRACE_S > now_s]
        return min(left, default=None)

    # Probes.

    def _probe(self) -> None:
        while True:
            number = self._probes.get()
            self._known = self._ledgers.known()
            self._has_probed.set()
            if number is not None:
                self._reply(Known(number=number, ledgers=self._probed()))

    def _probed(self) -> tuple[ProbedLedger, ...]:
        reports = {row.name: row for row in self._ledgers.book.rows()}
        return tuple(
            ProbedLedger(
                report=reports[name[:NAME_CHARS_MAX]],
                fault=found.fault,
                cause=found.cause[:SHOWN_CHARS_MAX],
            )
            for name, found in self._ledgers.results.items()
        )

    # Look-ups.

    def _take_look_up(self, request: LookUpRequest) -> None:
        one = _LookUpJob(request, time.monotonic() + request.wait_ms / 1_000)
        with self._lock:
            if len(self._waiting) >= REQUESTS_MAX or request.number in self._waiting:
                raise _too_many()
            self._waiting[request.number] = one
            reason = self._queue(one)
        if reason:
            self._answer_all(one, reason)

    def _queue(self, one: _LookUpJob) -> str:
        """Give a look-up to its ledger's thread; return why that is impossible, or nothing."""
        ledger_uuid = one.request.ledger_uuid
        lane = self._lanes.get(ledger_uuid)
        if lane is not None:
            if lane.current is not None and lane.current.is_abandoned:
                return SLOW
            lane.waiting.append(one)
            return ""
        if len(self._lanes) >= THREADS_MAX:
            return BUSY
        self._lanes[ledger_uuid] = lane = _Lane(deque([one]))
        threading.Thread(
            target=self._serve, args=(ledger_uuid, lane), name="escrowmq-look-up", daemon=True
        ).start()
        return ""

    def _serve(self, ledger_uuid: str, lane: _Lane) -> None:
        """Work on the look-ups of one ledger until there are none."""
        while True:
            with self._lock:
                if not lane.waiting:
                    del self._lanes[ledger_uuid]
                    return
                one = lane.current = lane.waiting.popleft()
                is_waiting = one.request.number in self._waiting
            if not is_waiting:
                continue
            if one.until_s <= time.monotonic():
                self._answer_all(one, LATE.reason, "earlier requests took all of its time")
            else:
                self._look_up(one)

    def _look_up(self, one: _LookUpJob) -> None:
        request = one.request
        try:
            self._has_probed.wait(WAIT_S + GRACE_S)
            known = self._known
            seconds_max = one.until_s - time.monotonic()
            with Inquiries(known, seconds_max=seconds_max) as inquiries:
                found = inquiries.resolve(request.ledger_uuid, _rows(request), request.sight)
                failure = inquiries.asked.get(request.ledger_uuid)
        except Exception as error:  # noqa: BLE001 -- one look-up must not end the others
            # Only the type: the text of an unexpected error may contain a password.
            log.warning("look_up_failed", extra={"cause": type(error).__name__})
            self._answer_all(one, FAILED, type(error).__name__)
            return
        fault = known.fault_of(request.ledger_uuid)
        reason, text = (fault or "", "") if failure is None else failure
        if fault is None:
            self._ledgers.book.note_look_up(request.ledger_uuid, reason, text)
        self._answer(one, found, reason, text)

    # Answers.

    def _answer_all(self, one: _LookUpJob, reason: str, text: str = "") -> None:
        """Answer UNKNOWN for every transaction of a look-up, for this reason."""
        unknown = LedgerAnswer(LedgerOutcome.UNKNOWN, reason)
        self._answer(one, [unknown] * one.request.rows, reason, text)

    def _answer(self, one: _LookUpJob, found: list[LedgerAnswer], error: str, text: str) -> None:
        """Send the answer, unless the look-up has been answered as overdue."""
        number = one.request.number
        with self._lock:
            if self._waiting.pop(number, None) is None:
                return
        self._reply(
            LookUpAnswer(
                number=number,
                outcomes=[answer.outcome for answer in found],
                reasons=[answer.reason for answer in found],
                error=error,
                error_text=" ".join(text.split())[:SHOWN_CHARS_MAX],
            )
        )


def _rows(request: LookUpRequest) -> InquiredRows:
    return InquiredRows(
        transaction_ids=request.transaction_ids,
        producer_groups=request.producer_groups,
        half_offsets=request.half_offsets,
        as_of_ms=list(repeat(request.as_of_ms, request.rows)),
        stored_at_ms=request.stored_at_ms,
        allowed_ms=request.allowed_ms,
    )


def _too_many() -> ProtocolViolation:
    return ProtocolViolation(
        "look_up_malformed", "too many requests, or two with one number", requests_max=REQUESTS_MAX
    )
