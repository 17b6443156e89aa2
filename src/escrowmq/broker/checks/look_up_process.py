"""The broker's look-up process: it looks ledgers up, so that no database driver runs in the broker.

The process starts with the first request. After it failed, requests fail at once for a pause that
grows from 0.5 s to 30 s; the first request after the pause starts the process again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from escrowmq.broker.checks.look_up_child import LookUpChild
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.protocol.look_up.messages import (
    LEDGERS_MAX,
    Configure,
    Known,
    LookUpAnswer,
    LookUpReply,
    LookUpRequest,
    Probe,
)

#: How long a new process may take until it takes requests.
START_S = 20.0
#: A process that ran this long counts as healthy, and its next failure as the first.
HEALTHY_S = 60.0
#: A failure is logged at most this often.
LOGGED_AGAIN_S = 60.0

log = event_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpLimits:
    """Time limits of the look-up process."""

    #: How long a probe may take.
    probe_s: float = 10.0
    #: How long a look-up may take beyond the time that its request allows.
    grace_s: float = 10.0
    #: The pause after the first failure, which each further failure doubles, and the longest pause.
    pauses_s: tuple[float, float] = (0.5, 30.0)


class LookUpProcess:
    """Starts, asks, restarts and stops the look-up process. Use it from one event loop only."""

    def __init__(
        self,
        command: Sequence[str],
        ledgers: Mapping[str, str],
        limits: LookUpLimits | None = None,
    ) -> None:
        if len(ledgers) > LEDGERS_MAX:
            raise RequestRefused(
                "bad_config", f"must be at most {LEDGERS_MAX} sections", key="ledger"
            )
        self._command = tuple(command)
        self._configuration = Configure(ledgers=dict(ledgers))
        self._limits = limits or LookUpLimits()
        self._logged = LogLimit(log, burst=1, window_s=LOGGED_AGAIN_S)
        self._is_open = False
        self._child: LookUpChild | None = None
        #: Ends with the started process, or None if it could not be started.
        self._starting: asyncio.Task[LookUpChild | None] | None = None
        #: Runs that have failed and may not be reaped yet.
        self._ending: set[asyncio.Task[None]] = set()
        self._failures = 0
        #: Why and until when no process may start, on the loop's clock.
        self._why = ""
        self._starts_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process id; None if no process runs."""
        return None if self._child is None else self._child.pid

    @property
    def names(self) -> Collection[str]:
        """Names of the configured ledgers."""
        return self._configuration.ledgers.keys()

    async def start(self) -> None:
        """Allow requests. The first one starts the process."""
        self._is_open = True

    async def stop(self) -> None:
        """End the process; when this returns, it is reaped and its pipes are closed."""
        self._is_open = False
        self._why = "the look-up process is stopped"
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
        if self._ending:
            await asyncio.wait(self._ending)

    async def known(self) -> Known:
        """Ask every configured database which ledger it has.

        Raises:
            Unavailable: ``look_up_failed`` or ``look_up_busy``.
        """
        reply = await self._ask(Probe(number=0), self._limits.probe_s)
        assert isinstance(reply, Known)
        return reply

    async def look_up(self, request: LookUpRequest) -> LookUpAnswer:
        """Look up transactions in their ledger, and fence those that are absent and overdue.

        Raises:
            Unavailable: ``look_up_failed`` or ``look_up_busy``.
            RequestRefused: ``look_up_too_large``: ask for fewer transactions.
        """
        reply = await self._ask(request, request.wait_ms / 1_000 + self._limits.grace_s)
        assert isinstance(reply, LookUpAnswer)
        return reply

    async def _ask(self, call: Probe | LookUpRequest, seconds_max: float) -> LookUpReply:
        if not self._is_open:
            raise Unavailable("look_up_failed", "the look-up process is stopped")
        child = self._child or await self._started()
        return await child.ask(call, seconds_max)

    # Starting.

    async def _started(self) -> LookUpChild:
        """Start a process, or wait for the start that another request began."""
        if self._starting is None:
            if asyncio.get_running_loop().time() < self._starts_at_s:
                raise self._unavailable()
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._note_started)
        # Another request may wait for the same start, so cancel only this wait.
        (done,), _ = await asyncio.wait([self._starting])
        child: LookUpChild | None = None if done.cancelled() else done.result()
        if child is None:
            raise self._unavailable()
        return child

    def _note_started(self, _: asyncio.Task[LookUpChild | None]) -> None:
        self._starting = None

    async def _start(self) -> LookUpChild | None:
        child = LookUpChild(lambda why: self._on_failure(child, why))
        executing = asyncio.ensure_future(child.start(self._command))
        try:
            await asyncio.shield(executing)
            child.configure(self._configuration, START_S)
            if not await child.is_configured:
                return None
        except OSError as error:
            # Without a process there is nothing to kill.
            self._on_failure(child, error.strerror or str(error))
            return None
        except asyncio.CancelledError:
            # A process that is just being started can be ended only after that.
            await asyncio.gather(executing, return_exceptions=True)
            await child.stop()
            raise
        log.info("look_up_process_started", extra={"pid": child.pid})
        self._child = child
        return child

    # Failing.

    def _on_failure(self, child: LookUpChild, why: str) -> None:
        loop = asyncio.get_running_loop()
        if self._child is child:
            self._child = None
        if child.pid is not None:
            ending = asyncio.create_task(child.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        if not self._is_open:
            return
        was_healthy = loop.time() - child.started_at_s >= HEALTHY_S
        self._failures = 1 if was_healthy else self._failures + 1
        pause_s = self._pause_s()
        self._why, self._starts_at_s = why, loop.time() + pause_s
        facts = {"why": why, "failures": self._failures, "restarts_in_ms": int(pause_s * 1_000)}
        self._logged.warning("look_up_process_failed", "", facts)

    def _pause_s(self) -> float:
        # Bound the exponent: a large power of two overflows a float.
        exponent = min(self._failures - 1, 30)
        first_s, longest_s = self._limits.pauses_s
        return min(first_s * 2.0**exponent, longest_s)

    def _unavailable(self) -> Unavailable:
        wait_s = self._starts_at_s - asyncio.get_running_loop().time()
        retry_after_ms = max(math.ceil(wait_s * 1_000), 1)
        return Unavailable("look_up_failed", self._why, retry_after_ms=retry_after_ms)
