"""The pipeline as a service: waits until a broker says that there is something to do, and does it.

One thread conducts: it hears brokers (``watching.py``), asks the pace what is next (``pacing.py``),
and hands work to two others, one for settling and one for archiving, so that neither waits for the
other.  A failed run is told, counted and tried again; only a dead Spark ends the service.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from escrowmq.model.clock import Clock
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.lanes import Done, Lane
from escrowmq.pipeline.pacing import PROGRESS_MS, Heard, Pace
from escrowmq.pipeline.telemetry import BrokerFacts, Facts, RunFacts, Telemetry
from escrowmq.pipeline.watching import Away, BrokerWatch

log = logging.getLogger(__name__)

EXIT_SPARK_DIED = 3

SETTLE = "settle"
ARCHIVE = "archive"
PROGRESS = "progress"
TIDY = "tidy"

#: Whether Spark lives is looked at so often.
LOOK_MS = 5_000
#: A broker that does not answer is asked again after so long.
AWAY_MS = 1_000
#: After so long without work, memory is given back.
TIDY_AFTER_MS = 30_000
#: Summaries of rounds that wait for the next run of archiving; the oldest go first.
ROUNDS_MAX = 10_000


class Jobs(Protocol):
    """What the service has others do; each is called from one thread at a time."""

    def settle(self) -> Facts:
        """Run one round."""
        ...

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        """Take what is new into the lake, and these summaries of rounds with it."""
        ...

    def progress(self) -> object:
        """What is another value when consumers went on."""
        ...

    def cancel_settle(self) -> None:
        """Give the round up that is running."""
        ...

    def tidy(self) -> None:
        """Give memory back."""
        ...

    def is_alive(self) -> bool:
        """Whether there is any sense in going on."""
        ...


@dataclass(frozen=True, slots=True)
class _Stop:
    exit_code: int


Event: TypeAlias = Heard | Away | Done | _Stop
Watching: TypeAlias = Callable[[str, Callable[[Heard | Away], None]], BrokerWatch]


class Service:
    """Conducts; ``stop`` may be called from anywhere, all else by the thread that runs it."""

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
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._pace = Pace(config)
        self._lanes = {name: Lane(name, self._events.put) for name in (SETTLE, ARCHIVE)}
        self._watches = {
            address: watching(address, self._events.put) for address in config.broker_addresses
        }
        for address in self._watches:
            self.telemetry.brokers[address] = BrokerFacts(away_since_ms=clock.now_ms())
        #: When each broker may be asked, and since when things are news there.
        self._ask_at_ms = dict.fromkeys(self._watches, 0)
        self._since_ms = dict.fromkeys(self._watches, 0)
        self._rounds: deque[Facts] = deque(maxlen=ROUNDS_MAX)
        self._progress: object = None
        self._progress_at_ms = _now_ms() + PROGRESS_MS
        self._worked_at_ms: int | None = None
        self._is_cancelled = False

    def stop(self, exit_code: int = 0) -> None:
        """Run no longer."""
        self._events.put(_Stop(exit_code))

    def run(self) -> int:
        """Run until it is stopped, or Spark has died; the exit code."""
        while True:
            self._ask()
            self._start_work()
            event = self._next_event()
            if isinstance(event, _Stop):
                break
            if event is not None:
                self._handle(event)
            if not self._jobs.is_alive():
                log.error("spark_died", extra={"master": self._config.master})
                event = _Stop(EXIT_SPARK_DIED)
                break
        for watch in self._watches.values():
            watch.close()
        for lane in self._lanes.values():
            lane.close()
        return event.exit_code

    # Asking.

    def _ask(self) -> None:
        interval_ms = min(self._config.settle_interval_ms, self._config.archive_interval_ms)
        for address, watch in self._watches.items():
            # While a round runs, what is due is being looked at: everything would be news.
            is_free = not watch.is_asking and not self._pace.settling.is_running
            if is_free and self._ask_at_ms[address] <= _now_ms():
                # The first answer tells how things are, the others what is new.
                since_ms = self._since_ms[address]
                watch.ask(interval_ms if since_ms else 0, since_ms)

    def _next_event(self) -> Event | None:
        at_ms = [self._pace.settle_at_ms(), self._pace.archive_at_ms(), *self._ask_at_ms.values()]
        future = [at for at in at_ms if at is not None and at > _now_ms()]
        wait_ms = min([*future, _now_ms() + LOOK_MS]) - _now_ms()
        try:
            return self._events.get(timeout=max(wait_ms, 0) / 1_000)
        except queue.Empty:
            return None

    def _handle(self, event: Heard | Away | Done) -> None:
        with self.telemetry.lock:
            if isinstance(event, Done):
                self._on_done(event)
            elif isinstance(event, Heard):
                self._on_heard(event)
            else:
                self._on_away(event)

    def _on_heard(self, heard: Heard) -> None:
        self._watches[heard.broker].is_asking = False
        self._pace.note(heard)
        facts = self.telemetry.brokers[heard.broker]
        if not facts.is_reachable:
            log.info("broker_found", extra={"broker": heard.broker})
        facts.is_reachable, facts.away_since_ms, facts.error = True, 0, ""
        facts.heard_at_ms = self._clock.now_ms()
        facts.due, facts.undecided = heard.due, heard.undecided
        facts.sink_attempts, facts.log_end = heard.sink_attempts, heard.log_end
        facts.archive_lag_bytes = self._pace.archive_lag()[heard.broker]
        # What was heard once is no news, whether or not a round follows at once.
        self._since_ms[heard.broker] = heard.now_ms

    def _on_away(self, away: Away) -> None:
        self._watches[away.broker].is_asking = False
        self._pace.note_away(away.broker)
        self._ask_at_ms[away.broker] = _now_ms() + AWAY_MS
        self._since_ms[away.broker] = 0
        facts = self.telemetry.brokers[away.broker]
        if facts.is_reachable or not facts.error:
            log.warning("broker_away", extra={"broker": away.broker, "why": str(away.error)})
        if facts.is_reachable:
            facts.is_reachable, facts.away_since_ms = False, self._clock.now_ms()
        facts.error = str(away.error)

    # Working.

    def _start_work(self) -> None:
        now_ms = _now_ms()
        settle_at_ms, archive_at_ms = self._pace.settle_at_ms(), self._pace.archive_at_ms()
        if settle_at_ms is not None and settle_at_ms <= now_ms:
            self._pace.round_began(now_ms)
            self._begin(SETTLE, self.telemetry.settle, self._jobs.settle)
        if archive_at_ms is not None and archive_at_ms <= now_ms:
            self._pace.archive_began(now_ms)
            rounds = tuple(self._rounds)
            self._rounds.clear()
            self._begin(ARCHIVE, self.telemetry.archive, lambda: self._jobs.archive(rounds))
        elif self._config.archive and self._progress_at_ms <= now_ms:
            self._progress_at_ms = now_ms + PROGRESS_MS
            self._lanes[ARCHIVE].do(PROGRESS, self._jobs.progress)
        self._look_after(now_ms)

    def _begin(self, name: str, facts: RunFacts, work: Callable[[], Facts]) -> None:
        facts.last_began_at_ms = self._clock.now_ms()
        self._worked_at_ms = _now_ms()
        self._is_cancelled = self._is_cancelled and name != SETTLE
        self._lanes[name].do(name, work)

    def _look_after(self, now_ms: int) -> None:
        """Give up what takes too long, and give back what is not needed."""
        settling = self._pace.settling
        if settling.is_running:
            assert settling.began_at_ms is not None
            is_late = now_ms - settling.began_at_ms > self._config.round_ms_max
            if is_late and not self._is_cancelled:
                self._is_cancelled = True
                log.error("round_given_up", extra={"after_ms": now_ms - settling.began_at_ms})
                self._jobs.cancel_settle()
        is_idle = not settling.is_running and not self._pace.archiving.is_running
        if self._worked_at_ms is None or not is_idle:
            return
        if now_ms - self._worked_at_ms > TIDY_AFTER_MS:
            self._worked_at_ms = None
            self._lanes[ARCHIVE].do(TIDY, self._jobs.tidy)

    def _on_done(self, done: Done) -> None:
        now_ms = _now_ms()
        is_failed = done.error is not None
        if done.name == SETTLE:
            self._pace.settling.end(now_ms, is_failed=is_failed)
            facts = self._told("settle_done", "settle_failed", self.telemetry.settle, done)
            self._rounds += [] if facts is None else [facts]
        elif done.name == ARCHIVE:
            self._pace.archive_ended(now_ms, is_failed=is_failed)
            self._told("archive_done", "archive_failed", self.telemetry.archive, done)
            for broker, lag in self._pace.archive_lag().items():
                self.telemetry.brokers[broker].archive_lag_bytes = lag
        elif is_failed:
            log.warning("side_work_failed", extra={"work": done.name, "why": repr(done.error)})
        elif done.name == PROGRESS and done.result != self._progress:
            self._progress = done.result
            self._pace.note_progress()

    def _told(self, good: str, bad: str, facts: RunFacts, done: Done) -> Facts | None:
        """Tell the log and the telemetry how a run ended."""
        self._worked_at_ms = _now_ms()
        facts.last_ended_at_ms = self._clock.now_ms()
        if done.error is None:
            assert isinstance(done.result, Mapping)
            facts.add(done.result)
            log.info(good, extra={f"run_{name}": value for name, value in done.result.items()})
            return done.result
        facts.fail(done.error)
        # A broker or a database that is away needs no trace of our code; a mistake of ours does.
        trace = None if isinstance(done.error, EscrowError) else done.error
        extra = {"failures_in_a_row": facts.failures_in_a_row, "why": str(done.error)[:2_000]}
        log.error(bad, extra=extra, exc_info=trace)
        return None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
