"""AWAIT_DUE: the pipeline waits here until it has something to do.

All waiting calls share one look at the undecided transactions. The broker looks when a new call
arrives, when a check may have come due, or when a wait is over. Looks take only a small share of
the processor: the more undecided transactions there are, the rarer the looks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.ledger_reports import PipelineSigns
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.guard import guarded
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import Unavailable
from escrowmq.model.sink_attempt import SinkRun, parse_attempt
from escrowmq.protocol.native.pipeline_headers import AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.store import Store
from escrowmq.store.table.chunk import Checks
from escrowmq.store.table.dues import Dues
from escrowmq.transaction.records import NEVER

WAIT_MS_MAX = 25_000
"""The longest wait of a call; less than the request timeout of our own clients."""
WAITING_MAX = 1_024
"""Calls that may wait. The broker answers a further call without waiting for news."""
RUNS_MAX = 1_024
"""Sink runs that the broker remembers; it takes a forgotten run for a new one."""
REST = 30
"""After a look, the broker pauses for this many times the duration of the look."""


@dataclass(slots=True, eq=False)
class _LongWait:
    """An AWAIT_DUE without an answer."""

    call: Call[AwaitDueHeader]
    #: End of the wait, on the event loop's clock.
    until: float


class Awaiting:
    """Handles AWAIT_DUE. Use it from one event loop only."""

    def __init__(
        self, *, store: Store, writer: Writer, clock: BrokerClock, signs: PipelineSigns
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._signs = signs
        self._dues = Dues(store.table, store.core.names)
        self._loop = asyncio.get_running_loop()
        #: In order of arrival.
        self._waiting: dict[_LongWait, None] = {}
        self._is_looking = False
        self._rests_until = 0.0
        #: Durable end of the log at the last news about batches; the broker's start counts as news.
        self._batches = store.durable_end
        self._runs: dict[SinkRun, None] = {}

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    @handles(NativeCode.AWAIT_DUE)
    def await_due(self, call: Call[AwaitDueHeader]) -> None:
        """Answer when there is news, or when the wait is over."""
        self._signs.awaited_at_ms = self._clock.monotonic_ms()
        wait_ms = min(call.header.wait_ms, WAIT_MS_MAX)
        if len(self._waiting) >= WAITING_MAX:
            wait_ms = 0
        self._waiting[_LongWait(call, self._loop.time() + wait_ms / 1_000)] = None
        call.request.has_waited = True
        call.request.connection.owe()
        self._look_soon()

    def note_held(self, group: str, transaction_id: str) -> None:
        """Note a begun transaction: one of a new sink run is evidence against older runs."""
        attempt = parse_attempt(group, transaction_id)
        if attempt is not None and attempt.run not in self._runs:
            if len(self._runs) >= RUNS_MAX:
                del self._runs[next(iter(self._runs))]
            self._runs[attempt.run] = None
            self.note_batch()

    def note_batch(self) -> None:
        """Remember the log's end: a Spark sink's batch was decided, or a new sink run began."""
        self._batches = self._store.durable_end

    # Periodic work and shutdown.

    def tick(self) -> None:
        """Look again if a call waits and the look may find news or end a wait."""
        if not self._waiting:
            return
        now = self._loop.time()
        is_over = any(one.until <= now for one in self._waiting)
        if is_over or self._dues.may_be_news(self._clock.now_ms()):
            self._look_soon()

    def drop(self, connection: ClientConnection) -> None:
        """Forget the waiting calls of a closed connection."""
        for one in [one for one in self._waiting if one.call.request.connection is connection]:
            del self._waiting[one]

    def close(self) -> None:
        """Fail all waiting calls, because the broker is stopping."""
        self._end_all(Unavailable("writer_closed", "the broker is stopping"))

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(self._rests_until - self._loop.time(), self._ask)

    def _ask(self) -> None:
        try:
            # Between two batches, memory holds exactly what is durable.
            self._writer.between(self._look)
        except Unavailable as error:
            self._is_looking = False
            self._end_all(error)

    def _look(self) -> None:
        self._is_looking = False
        if self._store.failure is not None:
            self._end_all(self._store.finished())
            return
        began = self._loop.time()
        checks = self._dues.look(self._clock.now_ms())
        now = self._loop.time()
        self._rests_until = now + REST * (now - began)
        for one in list(self._waiting):
            if one.until <= now or checks.newest_due_at_ms > one.call.header.since_ms:
                self._answer(one, checks)

    def _answer(self, one: _LongWait, checks: Checks) -> None:
        self._end(one)
        next_due_at_ms = checks.next_due_at_ms
        answer = partial(
            one.call.answer,
            now_ms=self._dues.looked_at_ms,
            due=checks.due,
            next_due_at_ms=None if next_due_at_ms == NEVER else next_due_at_ms,
            undecided=checks.undecided,
            sink_attempts=checks.sink_attempts,
            batches_decided=self._batches,
            log_end=self._store.durable_end,
        )
        guarded(one.call.request.decline, answer)

    def _end(self, one: _LongWait) -> None:
        del self._waiting[one]
        one.call.request.connection.answered()

    def _end_all(self, error: Exception) -> None:
        for one in list(self._waiting):
            self._end(one)
            one.call.request.decline(error)
