"""Facts about the pipeline's work, for the log, for people, and for Prometheus.

Only the service's thread writes them, under the lock. Readers get a copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.service.lanes import WorkDone
from escrowmq.pipeline.service.pacing import Heard

log = event_log(__name__)

Facts = Mapping[str, object]
"""A summary as it is shown: names and values."""

ERROR_CHARS_MAX = 2_000
#: Facts of a summary that are a state, so they are not summed over runs.
NOT_SUMMED = {"started_at_ms", "brokers", "lag_ms", "differences_held", "open_requests_held"}


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """Facts about one kind of work, over all of its runs."""

    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_began_at_ms: int = 0
    last_ended_at_ms: int = 0
    last_error: str = ""
    last: dict[str, object] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def end(self, done: WorkDone, now_ms: int) -> list[Facts]:
        """Record and log how a run ended. Return its summary if it succeeded."""
        self.last_ended_at_ms = now_ms
        if done.error is not None:
            self._fail(done)
            return []
        assert isinstance(done.result, Mapping)
        self.runs += 1
        self.failures_in_a_row = 0
        self.last = dict(done.result)
        for name, number in _numbers(self.last):
            if name not in NOT_SUMMED:
                self.totals[name] = self.totals.get(name, 0) + number
        return [done.result]

    def _fail(self, done: WorkDone) -> None:
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_error = f"{type(done.error).__name__}: {done.error}"[:ERROR_CHARS_MAX]
        extra = {"failures_in_a_row": self.failures_in_a_row, "why": self.last_error}
        # An unreachable broker or database needs no stack trace. An error in our code does.
        trace = None if isinstance(done.error, EscrowError) else done.error
        log.error(f"{done.name}_failed", extra=extra, exc_info=trace)  # noqa: G004 -- its name


@dataclass(slots=True, kw_only=True)
class BrokerFacts:
    """Facts about one broker."""

    address: str
    is_reachable: bool = False
    #: Since when it has not answered; 0 if it answers.
    away_since_ms: int = 0
    error: str = ""
    heard_at_ms: int = 0
    due: int = 0
    undecided: int = 0
    sink_attempts: int = 0
    log_end: int = 0
    #: Bytes of its log that are not in the lake yet.
    archive_lag_bytes: int = 0

    def hear(self, heard: Heard, now_ms: int) -> None:
        """Record an answer."""
        if not self.is_reachable:
            log.info("broker_found", extra={"broker": self.address})
        self.is_reachable, self.away_since_ms, self.error = True, 0, ""
        self.heard_at_ms = now_ms
        answer = heard.answer
        self.due, self.undecided = answer.due, answer.undecided
        self.sink_attempts, self.log_end = answer.sink_attempts, answer.log_end

    def lose(self, why: str, now_ms: int) -> None:
        """Record a missing answer."""
        if not self.error:
            # Log only the first of repeated failures.
            log.warning("broker_away", extra={"broker": self.address, "why": why})
        if self.is_reachable:
            self.is_reachable, self.away_since_ms = False, now_ms
        self.error = why


def _numbers(facts: Facts) -> Iterator[tuple[str, float]]:
    """Every number in a summary, by name. Numbers in a nested mapping get both names."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{inner}", number) for inner, number in _numbers(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


class Telemetry:
    """The facts, and the two formats in which they are shown."""

    def __init__(self, *, master: str, started_at_ms: int) -> None:
        self.lock = threading.Lock()
        self._about = {
            "version": version("escrowmq"),
            "pid": os.getpid(),
            "master": master,
            "started_at_ms": started_at_ms,
        }
        self.settle = RunFacts()
        self.compare = RunFacts()
        self.archive = RunFacts()
        self.upkeep = RunFacts()
        self.brokers: dict[str, BrokerFacts] = {}

    def status(self) -> dict[str, object]:
        """All facts, for JSON."""
        with self.lock:
            return {
                **self._about,
                "settle": asdict(self.settle),
                "compare": asdict(self.compare),
                "archive": asdict(self.archive),
                "upkeep": asdict(self.upkeep),
                "brokers": {name: asdict(broker) for name, broker in self.brokers.items()},
            }

    def metrics(self) -> str:
        """All numbers, in the Prometheus format."""
        with self.lock:
            kinds = {
                "settle": self.settle,
                "compare": self.compare,
                "archive": self.archive,
                "upkeep": self.upkeep,
            }
            lines = [line for name, facts in kinds.items() for line in self._of_runs(name, facts)]
            lines += self._of_brokers()
        return "\n".join(lines) + "\n"

    def _of_runs(self, name: str, facts: RunFacts) -> Iterator[str]:
        for fact, kind, value in (
            ("runs_total", "counter", facts.runs),
            ("failures_total", "counter", facts.failures),
            ("failures_in_a_row", "gauge", facts.failures_in_a_row),
            ("last_ended_timestamp_seconds", "gauge", facts.last_ended_at_ms / 1_000),
        ):
            yield from _metric(f"{name}_{fact}", kind, value)
        for fact, number in _numbers(facts.last):
            if fact == "lag_ms" or fact.endswith("_held"):
                yield from _metric(f"{name}_{fact}", "gauge", number)
        for fact, total in sorted(facts.totals.items()):
            yield from _metric(f"{name}_{fact}_total", "counter", total)

    def _of_brokers(self) -> Iterator[str]:
        for name in ("is_reachable", "due", "undecided", "sink_attempts", "archive_lag_bytes"):
            yield f"# TYPE escrowmq_pipeline_broker_{name} gauge"
            for broker, facts in self.brokers.items():
                # An address has no quotes or backslashes to escape.
                label = f'{{broker="{broker}"}}'
                yield f"escrowmq_pipeline_broker_{name}{label} {int(getattr(facts, name))}"


def _metric(name: str, kind: str, value: float) -> Iterator[str]:
    yield f"# TYPE escrowmq_pipeline_{name} {kind}"
    yield f"escrowmq_pipeline_{name} {value}"
