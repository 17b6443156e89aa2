"""What the pipeline did, for people and for Prometheus.

Written by the service's thread alone; a reader gets a copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

Facts = Mapping[str, object]
"""A summary as it is shown: names and values."""

#: Of a summary, what is the state of one run and no sum over all.
NOT_SUMMED = {"started_at_ms"}


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """One kind of work, over all of its runs."""

    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_began_at_ms: int = 0
    last_ended_at_ms: int = 0
    last_error: str = ""
    last: dict[str, object] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, facts: Facts) -> None:
        """A run ended well."""
        self.runs += 1
        self.failures_in_a_row = 0
        self.last = dict(facts)
        for name, value in facts.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and name not in NOT_SUMMED:
                self.totals[name] = self.totals.get(name, 0) + value  # type: ignore[operator]

    def fail(self, error: BaseException) -> None:
        """A run ended badly."""
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_error = f"{type(error).__name__}: {error}"[:2_000]


@dataclass(slots=True, kw_only=True)
class BrokerFacts:
    """What is known of a broker."""

    is_reachable: bool = False
    #: Since when it does not answer; 0 if it does.
    away_since_ms: int = 0
    error: str = ""
    heard_at_ms: int = 0
    due: int = 0
    undecided: int = 0
    sink_attempts: int = 0
    log_end: int = 0
    #: Bytes of its log that are not in the lake yet.
    archive_lag_bytes: int = 0


class Telemetry:
    """The facts, and the two forms in which they are shown."""

    def __init__(self, *, master: str, started_at_ms: int) -> None:
        self.lock = threading.Lock()
        self._about = {
            "version": version("escrowmq"),
            "pid": os.getpid(),
            "master": master,
            "started_at_ms": started_at_ms,
        }
        self.settle = RunFacts()
        self.archive = RunFacts()
        self.brokers: dict[str, BrokerFacts] = {}

    def status(self) -> dict[str, object]:
        """Everything, for JSON."""
        with self.lock:
            return {
                **self._about,
                "settle": asdict(self.settle),
                "archive": asdict(self.archive),
                "brokers": {name: asdict(broker) for name, broker in self.brokers.items()},
            }

    def metrics(self) -> str:
        """Everything that is a number, as Prometheus reads it."""
        with self.lock:
            lines = [*self._of_runs("settle", self.settle), *self._of_runs("archive", self.archive)]
            lines += self._of_brokers()
        return "\n".join(lines) + "\n"

    def _of_runs(self, name: str, facts: RunFacts) -> Iterator[str]:
        yield from _metric(f"{name}_runs_total", "counter", facts.runs)
        yield from _metric(f"{name}_failures_total", "counter", facts.failures)
        yield from _metric(f"{name}_failures_in_a_row", "gauge", facts.failures_in_a_row)
        last_s = facts.last_ended_at_ms / 1_000
        yield from _metric(f"{name}_last_ended_timestamp_seconds", "gauge", last_s)
        for fact, total in sorted(facts.totals.items()):
            yield from _metric(f"{name}_{fact}_total", "counter", total)

    def _of_brokers(self) -> Iterator[str]:
        names = ("is_reachable", "due", "undecided", "sink_attempts", "archive_lag_bytes")
        for name in names:
            yield f"# TYPE escrowmq_pipeline_broker_{name} gauge"
            for broker, facts in self.brokers.items():
                # An address has neither quotes nor backslashes.
                label = f'{{broker="{broker}"}}'
                yield f"escrowmq_pipeline_broker_{name}{label} {int(getattr(facts, name))}"


def _metric(name: str, kind: str, value: float) -> Iterator[str]:
    yield f"# TYPE escrowmq_pipeline_{name} {kind}"
    yield f"escrowmq_pipeline_{name} {value}"
