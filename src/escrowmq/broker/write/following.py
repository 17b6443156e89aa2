"""Lets a state store follow the log, in a thread of its own.

The event loop only collects what changed; the thread waits for the disk or the database. Batches
that were flushed while the thread was busy are handed over together. While the state store is away,
new half messages are refused. Decisions are taken: the log has them, and the state store gets them
when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from escrowmq.model.errors import EscrowError, StoreUnusable, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.store.states.follower import WAIT_S, Follower, FollowerWork
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Command, DecideBatch, HalfCommand, Prepare, Verdicts
from escrowmq.transaction.state_store import StatesLostTrack, StateStore
from escrowmq.transaction.states import State

T = TypeVar("T")

log = event_log(__name__)

RETRY_S = 1.0
"""Pause before the next attempt to reach a state store that is away."""
SILENT_S = 10.0
"""A state store that does not answer for this long counts as away."""
CLOSE_S = 5.0
"""How long a stop waits for the work under way, and as long again once it was interrupted."""
BEAT_S = 5.0
"""How often the state store hears from the broker at least."""
VERIFY_S = 600.0
"""How often the whole state store is compared with the core."""
LAG_ROWS_MAX = 1_000_000
"""Changes that the state store has not seen, above which new half messages are refused."""


class Following:
    """The follower of one store. Use it from one event loop only."""

    def __init__(self, store: Store, follower: Follower, go_on: Callable[[], None]) -> None:
        self.follower = follower
        self._store = store
        #: Schedules the writer's next turn, in which it calls ``follow``.
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._is_busy = self._is_closing = self._is_resting = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Only one thread may work on the state store.
        follower.is_led = True

    def begin(self) -> None:
        """Begin to follow, once no other thread uses the store."""
        self._tick("beat", BEAT_S, self.follower.beat)
        self._timers["verify"] = self._loop.call_later(
            VERIFY_S, self._tick, "verify", VERIFY_S, self.follower.verify
        )

    def refuse_if_away(self, command: Command) -> None:
        """Raise if the state store cannot follow, and the command is one that must wait for it."""
        problem = self.follower.problem
        is_half = type(command) is Prepare
        if isinstance(problem, StoreUnusable) and (is_half or self._would_decide(command)):
            raise Unavailable(
                "state_store_refused", "an operator must correct this", why=str(problem)
            )
        if problem is not None and is_half:
            raise Unavailable(
                "state_store_away", "the state store cannot follow the log", why=str(problem)
            )
        if is_half and self.follower.lag_rows > LAG_ROWS_MAX:
            raise Unavailable("state_store_behind", "the state store is too slow; try again")

    def _would_decide(self, command: Command) -> bool:
        """Whether a command may change a transaction; if that is decided, it cannot."""
        core = self._store.core
        if isinstance(command, HalfCommand):
            half = core.half(command.half_offset)
            return half is not None and half.state in {State.PREPARED, State.PARKED}
        if type(command) is DecideBatch:
            batch = (command.app_id, command.query_id, command.batch_id, command.content)
            return core.batches.judge(*batch) == "new"
        return type(command) is Verdicts

    def follow(self) -> None:
        """Hand over what changed. Call it between two batches."""
        is_free = not (self._is_busy or self._is_closing or self._is_resting)
        if not (is_free and self._store.is_all_durable):
            return
        work = self.follower.next_work()
        if work is not None:
            self._is_busy = True
            self._timers["silent"] = self._loop.call_later(SILENT_S, self._note_silence)
            self._thread.submit(work.run).add_done_callback(
                lambda ended: self._loop.call_soon_threadsafe(self._done, work, ended)
            )

    async def ask(self, question: Callable[[StateStore], T]) -> T:
        """Return the answer of the state store, which must have caught up.

        Raises:
            EscrowError: The state store is away, refused, or has not caught up with the log.
        """
        follower = self.follower
        if follower.problem is not None:
            raise follower.problem
        if self._is_closing or not follower.has_caught_up:
            raise Unavailable("state_store_behind", "it is being brought up to the log")
        asked = partial(question, follower.states)
        try:
            return await self._loop.run_in_executor(self._thread, asked)
        except (EscrowError, StatesLostTrack) as error:
            follower.failed(error)
            raise Unavailable("state_store_away", "it went away during a scan") from error

    async def close(self) -> None:
        """Wait for the work under way, or interrupt it; the store then closes the follower."""
        self._is_closing = True
        for timer in self._timers.values():
            timer.cancel()
        ended = self._loop.run_in_executor(None, self._thread.shutdown)
        await asyncio.wait({ended}, timeout=CLOSE_S)
        if not ended.done():
            self.follower.interrupt()
            await asyncio.wait({ended}, timeout=CLOSE_S)
        if not ended.done():
            log.error("state_store_stuck", extra={"store": self.follower.states.name})
        self.follower.is_led = not ended.done()
        self.follower.wait_s = CLOSE_S

    def _done(self, work: FollowerWork, ended: Future[Any]) -> None:
        self._timers["silent"].cancel()
        try:
            work.then(ended.result())
        except Exception as error:  # noqa: BLE001 - whatever it is, the state store is tried again
            self._failed(error)
        finally:
            self._is_busy = False
            self._go_on()

    def _note_silence(self) -> None:
        away = Unavailable("state_store_away", f"it has not answered for {SILENT_S:.0f} s")
        self.follower.failed(away)
        left_s = max(WAIT_S - SILENT_S, 0.0)
        self._timers["silent"] = self._loop.call_later(left_s, self.follower.interrupt)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, EscrowError | StatesLostTrack):
            log.error("state_store_failed", extra={"cause": repr(error)}, exc_info=error)
            error = Unavailable("state_store_away", "it failed", cause=repr(error))
        self.follower.failed(error)
        if not self._is_closing:
            self._is_resting = True
            self._timers["retry"] = self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._is_resting = False
        self._go_on()

    def _tick(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(every_s, self._tick, name, every_s, work)
        work()
        self._go_on()
