"""How a producer answers back-checks: from its ledger, or by the user's checker function.

A half message that names a ledger is looked up only there. If it names another ledger than ours,
the answer is UNKNOWN, and nothing is fenced. Lookups and checkers may hang, so the wait for each
has a timeout, and only a limited number run at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from escrowmq.client.ledger import checks as ledger_checks
from escrowmq.client.ledger.checks import Question
from escrowmq.client.messages.handling import is_for_this_task
from escrowmq.client.messages.messages import Received
from escrowmq.client.producer.check_answers import (
    ANSWERS_AGAIN_S,
    ANSWERS_LOGGED_MAX,
    IDS_LOGGED_MAX,
    Unknown,
    remark_of,
)
from escrowmq.client.producer.listener import resolution_of
from escrowmq.model.event_log import event_log
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.log_limit import LogLimit
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import ALLOWED_MS, LEDGER, TRANSACTION_CHECK_TIMES

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.producer.check_answers import Check, CheckAnswer
    from escrowmq.model.lineage import Sight

log = event_log(__name__)

#: Timeout of the wait for a free slot, and then of the wait for an answer.
ANSWER_S = 30.0
#: Maximum number of concurrent checker calls, and of concurrent ledger lookups.
ASKED_MAX = 8
LOOK_UPS_MAX = 4

Ask: TypeAlias = (
    "Callable[[Received], Resolution | None] | Callable[[Received], Awaitable[Resolution | None]]"
)
"""Returns the outcome of a half message's transaction; None and an error mean UNKNOWN."""

_RESOLUTIONS = {
    LedgerOutcome.COMMITTED: Resolution.COMMIT,
    LedgerOutcome.ROLLED_BACK: Resolution.ROLLBACK,
    LedgerOutcome.UNKNOWN: Resolution.UNKNOWN,
}


class ProducerChecks:
    """A producer's Checker: ledger and user's function. Use it from one event loop only."""

    def __init__(self, ledger: SqlLedger | None, ask: Ask | None) -> None:
        self._ledger = ledger
        self._ask = ask
        self._looking = _Patience(LOOK_UPS_MAX)
        self._asking = _Patience(ASKED_MAX)
        self._asked: set[str] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._limit = LogLimit(log, burst=ANSWERS_LOGGED_MAX, window_s=ANSWERS_AGAIN_S)

    async def __call__(self, checks: Sequence[Check]) -> Mapping[str, CheckAnswer]:
        """Return each check's outcome, or why it is unknown; leave out checks without an answer."""
        answers: dict[str, CheckAnswer] = {}
        work: list[Coroutine[Any, Any, None]] = []
        with_ledger = [check for check in checks if check.message.properties.get(LEDGER)]
        if with_ledger and self._ledger is not None:
            look_up = partial(self._look_up, self._ledger, with_ledger, answers)
            work.append(self._looking.wait(self._noting(look_up, with_ledger, answers)))
        if self._ask is not None:
            work += [
                self._asking.wait(
                    self._noting(partial(self._call, self._ask, check, answers), [check], answers)
                )
                for check in checks
                if not check.message.properties.get(LEDGER)
                # Do not call the checker again while its last call for this transaction hangs.
                and check.transaction_id not in self._asked
            ]
        await asyncio.gather(*work)
        return answers

    async def _noting(
        self,
        ask: Callable[[], Awaitable[None]],
        checks: Sequence[Check],
        answers: dict[str, CheckAnswer],
    ) -> None:
        """Answer checks by ``ask``; after an error, log it and answer UNKNOWN with its text."""
        try:
            await ask()
        except Exception as error:  # noqa: BLE001 - a user's function or a database driver failed
            unknown = Unknown(remark_of(error), is_logged=True)
            ids = [check.transaction_id for check in checks]
            answers.update(dict.fromkeys(ids, unknown))
            facts = {"count": len(ids), "transaction_ids": ids[:IDS_LOGGED_MAX]}
            facts |= {"why": unknown.remark}
            self._limit.warning("check_failed", None, facts, exc_info=error)

    async def _look_up(
        self, ledger: SqlLedger, checks: Sequence[Check], answers: dict[str, CheckAnswer]
    ) -> None:
        ours = await ledger.uuid_async()
        of_ours = [check for check in checks if check.message.properties[LEDGER] == ours]
        # Checks from one epoch of one broker share a lookup.
        for sight, some in _by_sight(of_ours):
            await self._resolve(ledger, ours, some, sight, answers)

    async def _resolve(
        self,
        ledger: SqlLedger,
        ledger_uuid: str,
        checks: Sequence[Check],
        sight: Sight | None,
        answers: dict[str, CheckAnswer],
    ) -> None:
        questions = [
            Question(
                check.transaction_id,
                check.held.group,
                deadline_at_ms(check.message) + check.clock_ahead_ms,
                check.held.half_offset,
            )
            for check in checks
        ]
        # Apache's broker does not send its time, so the deadline is on its clock, and "now" is on
        # ours. If our clock is ahead, a slow transaction is fenced early: it cannot write its row
        # and rolls back, which is also what the broker is told. If our clock is behind, the fence
        # comes late. Both are safe: the fence and the row have the same primary key in one table.
        found = await ledger.resolve_async(
            questions, ledger_uuid=ledger_uuid, now_ms=int(time.time() * 1_000), sight=sight
        )
        for transaction_id, answer in found.items():
            answers[transaction_id] = _RESOLUTIONS[answer.outcome]
            if answer.outcome is LedgerOutcome.UNKNOWN:
                answers[transaction_id] = Unknown(f"ledger: {answer.reason}")

    async def _call(self, ask: Ask, check: Check, answers: dict[str, CheckAnswer]) -> None:
        self._asked.add(check.transaction_id)
        try:
            if inspect.iscoroutinefunction(ask):
                answer = await ask(check.message)
            else:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._pool(), ask, check.message)
                # A sync wrapper around an async checker returns its coroutine.
                if inspect.isawaitable(answer):
                    answer = await answer
        except BaseException as error:
            is_async = inspect.iscoroutinefunction(ask)
            if isinstance(error, Exception) or is_for_this_task(error, is_async=is_async):
                raise
            raise RuntimeError(f"the checker raised {type(error).__name__}") from error
        finally:
            self._asked.discard(check.transaction_id)
        answers[check.transaction_id] = resolution_of(answer)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(ASKED_MAX, thread_name_prefix="escrowmq-check")
        return self._threads


def _by_sight(checks: Sequence[Check]) -> list[tuple[Sight | None, list[Check]]]:
    """Group checks by epoch, each group with a sight that holds for all of them."""
    by_epoch: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        lineage = check.sight.lineage if check.sight is not None else None
        key = ("", "") if lineage is None else (lineage.store_id, lineage.epoch)
        by_epoch.setdefault(key, []).append(check)
    # The earliest sight holds for all of them: a later one only covers more decisions.
    return [
        (
            min(
                (one.sight for one in some if one.sight),
                key=lambda sight: sight.log_end,
                default=None,
            ),
            some,
        )
        for some in by_epoch.values()
    ]


class _Patience:
    """Runs work that may hang: limits the wait, and the number of tasks that run at a time."""

    def __init__(self, running_max: int) -> None:
        self._running_max = running_max
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(running_max)

    async def wait(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that logs its own errors; do not wait for it longer than the timeout."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._slots.acquire()
        except TimeoutError:
            work.close()
            log.warning("checks_hang", extra={"running": self._running_max})
            return
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait((task,), timeout=ANSWER_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()


def deadline_at_ms(half: Received) -> int:
    """Return the time until which the sender may commit; an absent row can be fenced after it."""
    since_ms = half.visible_at_ms
    if half.properties.get(TRANSACTION_CHECK_TIMES, "1") != "1":
        # Apache's broker stores a half message again at each check; only the born time stays.
        since_ms = min(since_ms, half.born_at_ms)
    allowed = half.properties.get(ALLOWED_MS, "")
    if not allowed.isdecimal():
        # The SDK did not write this half message.
        return NEVER_MS
    return ledger_checks.deadline_at_ms(since_ms, int(allowed))


NEVER_MS = 2**62
