"""The pipeline as a service: waits until a broker reports due work, and starts it.

The main thread listens to brokers (``watching.py``), asks the pace what is next (``pacing.py``),
and hands work to other threads: one for settling, one for comparing, one for archiving and the
lake's upkeep, and one for reports about ledgers. A failed run is logged, counted and retried. Only
a dead Spark ends the service.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from escrowmq.model.clock import Clock
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.jobs import REPORT, ROUNDS_MAX, Jobs
from escrowmq.pipeline.service.lanes import WorkDone, WorkerThread
from escrowmq.pipeline.service.pacing import PROGRESS_MS, Heard, Pace
from escrowmq.pipeline.service.runs import ARCHIVE, COMPARE, SETTLE, UPKEEP
from escrowmq.pipeline.service.telemetry import BrokerFacts, Facts, RunFacts, Telemetry
from escrowmq.pipeline.service.watching import Away, BrokerWatch

log = event_log(__name__)

EXIT_SPARK_DIED = 7

PROGRESS = "progress"
#: The same, taken before an archive run. Progress up to this baseline is not news.
BASELINE = "baseline"
TIDY = "tidy"

#: How often the service checks that Spark is alive.
LOOK_MS = 5_000
#: A broker ends a wait after 25 seconds. With a longer wait, that answer would look like news.
WAIT_MS_MAX = 20_000
#: The delay before an unreachable broker is asked again.
AWAY_MS = 1_000
#: The idle time after which memory is freed.
TIDY_AFTER_MS = 30_000
#: How often brokers get a report about the ledgers, besides the one after each round.
REPORT_MS = 30_000


@dataclass(frozen=True, slots=True)
class _Stop:
    exit_code: int


ServiceEvent: TypeAlias = Heard | Away | WorkDone | _Stop
Watching: TypeAlias = Callable[[str, Callable[[Heard | Away], None]], BrokerWatch]


class PipelineService:
    """The main loop.

    ``stop`` may be called from any thread, everything else only from the loop's.
    """

    def __init__(
        self,
        config: PipelineConfig,
        jobs: Jobs,
        *,
        clock: Clock,
        watching: Watching = BrokerWatch,
    ) -> None:
        self.telemetry = Telemetry(master=config.master, started_at_ms=clock.now_ms())
        self._config = config
        self._jobs = jobs
        self._clock = clock
        self._events: queue.SimpleQueue[ServiceEvent] = queue.SimpleQueue()
        self._pace = Pace(config)
        names = (SETTLE, COMPARE, ARCHIVE, REPORT)
        lanes = {name: WorkerThread(name, self._events.put) for name in names}
        self._lanes = {**lanes, UPKEEP: lanes[ARCHIVE]}
        self._watches = {
            address: watching(address, self._events.put) for address in config.broker_addresses
        }
        for address in self._watches:
            self.telemetry.brokers[address] = BrokerFacts(
                address=address, away_since_ms=clock.now_ms()
            )
        #: When each broker may be asked next, and since when work counts as news there.
        self._ask_at_ms = dict.fromkeys(self._watches, 0)
        self._since_ms = dict.fromkeys(self._watches, 0)
        self._rounds: deque[Facts] = deque(maxlen=ROUNDS_MAX)
        self._progress: object = None
        self._progress_at_ms = _now_ms() + PROGRESS_MS
        self._report_at_ms = 0
        self._worked_at_ms: int | None = None
        self._cancelled: set[str] = set()

    def stop(self, exit_code: int = 0) -> None:
        """End the main loop."""
        self._events.put(_Stop(exit_code))

    def run(self) -> int:
        """Run until ``stop`` is called or Spark has died, and return the exit code."""
        while True:
            self._ask()
            self._start_work()
            event = self._next_event()
            if isinstance(event, _Stop):
                break
            if event is not None:
                self._handle(event)
            if not self._jobs.is_alive():
                event = _Stop(EXIT_SPARK_DIED)
                break
        for watch in self._watches.values():
            watch.close()
        for lane in self._lanes.values():
            lane.close()
        return event.exit_code

    # Asking.

    def _ask(self) -> None:
        intervals_ms = (self._config.settle_interval_ms, self._config.archive_interval_ms)
        wait_ms = min(*intervals_ms, WAIT_MS_MAX)
        for address, watch in self._watches.items():
            # A running round is already examining the due work, which would all be reported as
            # news.
            is_free = not watch.is_asking and not self._pace.settling.is_running
            if is_free and self._ask_at_ms[address] <= _now_ms():
                # The first answer reports the state, and the later ones report news.
                since_ms = self._since_ms[address]
                watch.ask(wait_ms if since_ms else 0, since_ms)

    def _next_event(self) -> ServiceEvent | None:
        pace = self._pace
        at_ms = [*pace.next_ats_ms(), *self._ask_at_ms.values()]
        future = [at for at in at_ms if at > _now_ms()]
        wait_ms = min([*future, _now_ms() + LOOK_MS]) - _now_ms()
        try:
            return self._events.get(timeout=max(wait_ms, 0) / 1_000)
        except queue.Empty:
            return None

    def _handle(self, event: Heard | Away | WorkDone) -> None:
        with self.telemetry.lock:
            if isinstance(event, WorkDone):
                self._on_done(event)
            elif isinstance(event, Heard):
                self._on_heard(event)
            else:
                self._on_away(event)

    def _on_heard(self, heard: Heard) -> None:
        self._watches[heard.broker].is_asking = False
        self._pace.note(heard)
        # Reported work is no longer news, whether or not a round follows at once.
        self._since_ms[heard.broker] = heard.answer.now_ms
        facts = self.telemetry.brokers[heard.broker]
        facts.hear(heard, self._clock.now_ms())
        facts.archive_lag_bytes = self._pace.archive_lag()[heard.broker]

    def _on_away(self, away: Away) -> None:
        self._watches[away.broker].is_asking = False
        self._pace.note_away(away.broker)
        self._ask_at_ms[away.broker] = _now_ms() + AWAY_MS
        self._since_ms[away.broker] = 0
        self.telemetry.brokers[away.broker].lose(str(away.error), self._clock.now_ms())

    # Working.

    def _start_work(self) -> None:
        now_ms = _now_ms()
        due = self._pace.begin_due(now_ms)
        if SETTLE in due:
            self._begin(SETTLE, self.telemetry.settle, self._jobs.settle)
        if COMPARE in due:
            self._begin(COMPARE, self.telemetry.compare, self._jobs.compare)
        if ARCHIVE in due:
            rounds = tuple(self._rounds)
            self._rounds.clear()
            self._lanes[ARCHIVE].do(BASELINE, self._jobs.progress)
            self._begin(ARCHIVE, self.telemetry.archive, lambda: self._jobs.archive(rounds))
        elif self._config.archive and self._progress_at_ms <= now_ms:
            self._progress_at_ms = now_ms + PROGRESS_MS
            self._lanes[ARCHIVE].do(PROGRESS, self._jobs.progress)
        if UPKEEP in due:
            today = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC).date()
            self._begin(UPKEEP, self.telemetry.upkeep, lambda: self._jobs.keep_up(today))
        if self._report_at_ms <= now_ms:
            self._report_at_ms = now_ms + REPORT_MS
            self._lanes[REPORT].do(REPORT, self._jobs.report_ledgers)
        self._look_after(now_ms)

    def _begin(self, name: str, facts: RunFacts, work: Callable[[], Facts]) -> None:
        facts.last_began_at_ms = self._clock.now_ms()
        self._worked_at_ms = _now_ms()
        self._cancelled.discard(name)
        self._lanes[name].do(name, work)

    def _look_after(self, now_ms: int) -> None:
        """Cancel a round that takes too long, and free memory after idle time."""
        for name, work in ((SETTLE, self._pace.settling), (COMPARE, self._pace.comparing)):
            running_ms = work.running_ms(now_ms)
            if running_ms > self._config.round_ms_max and name not in self._cancelled:
                self._cancelled.add(name)
                log.error("round_given_up", extra={"work": name, "after_ms": running_ms})
                self._jobs.cancel(name)
        if self._worked_at_ms is None or self._pace.is_at_work:
            return
        if now_ms - self._worked_at_ms > TIDY_AFTER_MS:
            self._worked_at_ms = None
            self._lanes[ARCHIVE].do(TIDY, self._jobs.tidy)

    def _on_done(self, done: WorkDone) -> None:
        now_ms = _now_ms()
        is_failed = done.error is not None
        if done.name in (SETTLE, COMPARE, ARCHIVE, UPKEEP):
            self._worked_at_ms = now_ms
        if done.name == SETTLE:
            self._pace.settling.end(now_ms, is_failed=is_failed)
            self._rounds += self.telemetry.settle.end(done, self._clock.now_ms())
        elif done.name == COMPARE:
            told = self.telemetry.compare.end(done, self._clock.now_ms())
            self._pace.compare_ended(now_ms, is_failed=is_failed, told=told)
        elif done.name == ARCHIVE:
            told = self.telemetry.archive.end(done, self._clock.now_ms())
            is_whole = all(facts.get("is_complete", True) for facts in told)
            self._pace.archive_ended(now_ms, is_failed=is_failed, is_whole=is_whole)
            for broker, lag in self._pace.archive_lag().items():
                self.telemetry.brokers[broker].archive_lag_bytes = lag
        elif done.name == UPKEEP:
            self._pace.keeping_up.end(now_ms, is_failed=is_failed)
            self.telemetry.upkeep.end(done, self._clock.now_ms())
        elif is_failed:
            log.warning("side_work_failed", extra={"work": done.name, "why": repr(done.error)})
        elif done.name == BASELINE:
            self._progress = done.result
        elif done.name == PROGRESS and done.result != self._progress:
            self._pace.note_progress()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
