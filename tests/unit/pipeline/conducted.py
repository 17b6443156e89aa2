"""A running pipeline service with stand-ins for its jobs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date

from escrowmq.model.clock import SystemClock
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.service import PipelineService
from escrowmq.pipeline.service.telemetry import Facts, Telemetry
from escrowmq.testing.in_process import InProcessBroker

DEADLINE_S = 20.0
#: Longer than any test runs.
NEVER_MS = 3_600_000


class Stand:
    """Stand-in jobs that record each run and fail on request."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.failure: Exception | None = None
        self.may_settle = threading.Event()
        self.may_settle.set()
        self.rounds: list[Facts] = []
        self.read = 0
        self.looks = 0
        self.reported = threading.Event()
        self.may_keep_up = threading.Event()
        self.may_keep_up.set()
        self.upkeep_failure: Exception | None = None
        self.days: list[date] = []
        self.lives = True

    def settle(self) -> Facts:
        self.may_settle.wait(DEADLINE_S)
        self.done.put("settle")
        if self.failure is not None:
            raise self.failure
        return {"seen": 3, "asked": 2, "took_ms": 5}

    def report_ledgers(self) -> None:
        self.reported.set()

    def compare(self) -> Facts:
        self.done.put("compare")
        return {"differences_held": 1, "is_behind": False, "took_ms": 5}

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        self.rounds += rounds
        self.done.put("archive")
        return {"rows": 10}

    def keep_up(self, today: date) -> Facts:
        self.days.append(today)
        self.done.put("upkeep")
        self.may_keep_up.wait(DEADLINE_S)
        if self.upkeep_failure is not None:
            raise self.upkeep_failure
        return {"files_merged": 8, "took_ms": 5}

    def progress(self) -> object:
        self.looks += 1
        return self.read

    def cancel(self, name: str) -> None:
        assert name == "settle"
        self.done.put("cancel")
        self.failure = RuntimeError("cancelled")
        self.may_settle.set()

    def tidy(self) -> None:
        self.done.put("tidy")

    def is_alive(self) -> bool:
        return self.lives

    def next(self) -> str:
        return self.done.get(timeout=DEADLINE_S)


class Running:
    """A service that runs in its own thread."""

    def __init__(self, config: PipelineConfig) -> None:
        self.jobs = Stand()
        self.service = PipelineService(config, self.jobs, clock=SystemClock())
        self.exit_codes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: self.exit_codes.put(self.service.run()))
        self._thread.start()

    @property
    def facts(self) -> Telemetry:
        return self.service.telemetry

    def ends(self) -> int:
        return self.exit_codes.get(timeout=DEADLINE_S)


@contextmanager
def running(
    broker: InProcessBroker,
    *,
    settle_ms: int = NEVER_MS,
    archive: bool = False,
    round_ms: int = 0,
    upkeep_ms: int = 24 * NEVER_MS,
    compare_ms: int = NEVER_MS,
) -> Iterator[Running]:
    config = PipelineConfig(
        brokers=broker.broker_address,
        settle_interval_ms=settle_ms,
        archive=archive,
        archive_interval_ms=100,
        round_ms_max=round_ms or NEVER_MS,
        lake_upkeep_interval_ms=upkeep_ms,
        compare_interval_ms=compare_ms,
    )
    one = Running(config)
    try:
        yield one
    finally:
        one.jobs.may_settle.set()
        one.jobs.may_keep_up.set()
        one.service.stop()
        one._thread.join(DEADLINE_S)
        assert not one._thread.is_alive()
