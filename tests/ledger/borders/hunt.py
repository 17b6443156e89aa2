"""Draws programs, runs them, counts what they did, and reports whether that was enough."""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.ledger.borders.audits import auditing
from tests.ledger.borders.hands import DRIVERS, Driver, drive
from tests.ledger.borders.programs import Step, draw_program
from tests.ledger.borders.runs import run_step
from tests.ledger.borders.world import Audit, World
from tests.ledger.conftest import postgres_server
from tests.ledger.shops import Shop, sqlite_shop

#: The counts that a run of this length must reach.
FULL_S = 600
COMMITS_PER_DRIVER = 200
SAVEPOINT_ROLLBACKS_PER_DRIVER = 50
RESTORES = 20
#: A hunt must do each of these at least once.
MECHANISMS = (
    "backups by copy",
    "backups by our tool",
    "cancels",
    "chains",
    "commits by hand refused",
    "consumed",
    "consumed again",
    "decisions lost",
    "nested blocks refused",
    "orphans",
    "parked",
    "positions moved to a fork",
    "raises",
    "restarts",
    "restores",
    "rows swept",
    "savepoint rollbacks",
    "savepoints released",
    "settled by checks",
    "statements failed",
    "sweeps",
)
TABLES = ("orders", "escrowmq_ledger", "escrowmq_ledger_swept", "escrowmq_consumed")
AUDITS = ("audits", "audits with findings")
PROGRAM_S_MAX = 60.0
AUDIT_S_MAX = 120.0


class Hunt:
    """The programs of one seed; the k-th is the same in every run."""

    def __init__(
        self,
        seed: int,
        postgres_url: Callable[[], str],
        audit: Audit | None = None,
        *,
        audit_every: int = 1,
    ) -> None:
        self.seed = seed
        self.programs = 0
        self.counts: Counter[str] = Counter()
        self.per_driver: dict[str, Counter[str]] = {}
        self._postgres_url = postgres_url
        self._audit = audit
        self._audit_every = audit_every

    def program(self, number: int) -> tuple[str, list[Step]]:
        """Return the driver and the steps of a program."""
        names = sorted(DRIVERS)
        name = names[number % len(names)]
        rng = Random(f"{self.seed}:{number}")
        return name, draw_program(rng, DRIVERS[name])

    def run(self, number: int) -> None:
        """Run one program; every exception is a finding."""
        name, steps = self.program(number)
        counts: Counter[str] = Counter()
        # Rotate the drivers that are audited, whatever the interval is.
        turn = number + number // len(DRIVERS)
        audit = None if turn % self._audit_every else self._audit
        try:
            with self._shop(DRIVERS[name]) as (shop, folder):
                work = _run(World(DRIVERS[name], shop, folder, counts), steps, audit)
                if DRIVERS[name].is_async:
                    asyncio.run(
                        asyncio.wait_for(work, PROGRAM_S_MAX + (AUDIT_S_MAX if audit else 0))
                    )
                else:
                    drive(work)
        except Exception as error:
            told = "\n".join(f"  {step}" for step in steps)
            error.add_note(f"program {number} on {name}:\n{told}")
            raise
        self.programs += 1
        self.counts += counts
        self.per_driver.setdefault(name, Counter()).update(counts)

    @contextmanager
    def _shop(self, driver: Driver) -> Iterator[tuple[Shop, Path]]:
        with tempfile.TemporaryDirectory(prefix="escrowmq-borders-") as folder:
            if driver.kind == "sqlite":
                shop = sqlite_shop(Path(folder))
            else:
                shop = Shop(kind="postgresql", url=self._postgres_url())
                shop.set_up()
                for table in TABLES:
                    shop.run(f"DELETE FROM {table}")
            try:
                yield shop, Path(folder)
            finally:
                shop.close()

    def report(self) -> dict[str, Any]:
        """Return the counts of what was done."""
        return {
            "seed": self.seed,
            "programs": self.programs,
            **dict(sorted(self.counts.items())),
            "drivers": {
                name: {
                    "commits": counts["commits"],
                    "savepoint rollbacks": counts["savepoint rollbacks"],
                }
                for name, counts in sorted(self.per_driver.items())
            },
        }

    def shortfalls(self, seconds: float) -> list[str]:
        """Return what was not done often enough for a hunt of this length."""
        share = min(1.0, seconds / FULL_S)

        def least(full: int) -> int:
            return math.ceil(full * share)

        needed = MECHANISMS + (AUDITS if self._audit is not None else ())
        found = [f"no {name}" for name in needed if not self.counts[name]]
        for name in sorted(DRIVERS):
            counts = self.per_driver.get(name, Counter())
            wanted = {
                "commits": least(COMMITS_PER_DRIVER),
                "savepoint rollbacks": least(SAVEPOINT_ROLLBACKS_PER_DRIVER),
            }
            found += [
                f"{name}: {counts[what]} {what} of {count}"
                for what, count in wanted.items()
                if counts[what] < count
            ]
        if self.counts["restores"] < least(RESTORES):
            found.append(f"{self.counts['restores']} restores of {least(RESTORES)}")
        if self.counts["refusals"] * 2 > self.counts["blocks"]:
            found.append(f"{self.counts['refusals']} refusals in {self.counts['blocks']} blocks")
        return found


async def _run(world: World, steps: list[Step], audit: Audit | None) -> None:
    try:
        await world.open()
        for step in steps:
            await run_step(world, step)
        await world.end(audit)
    finally:
        await world.close()


@contextmanager
def hunting(seed: int, *, audit_every: int = 0) -> Iterator[Hunt]:
    """Yield a hunt with its own PostgreSQL server, and with Spark if programs are audited."""
    with quiet(), postgres_server() as server:
        if not audit_every:
            yield Hunt(seed, server.get_uri)
            return
        with auditing() as audit:
            yield Hunt(seed, server.get_uri, audit, audit_every=audit_every)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the logs: a hunt causes lost decisions and refusals all the time."""
    loggers = [logging.getLogger(name) for name in ("escrowmq", "sqlalchemy.pool", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def hunt_until(hunt: Hunt, seconds: float) -> None:
    """Run programs until the time is over."""
    deadline_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline_s:
        hunt.run(number)
        number += 1
