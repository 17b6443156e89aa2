"""Runs a year, or some days of it, and reports the result."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.year.machine import Machine
from tests.crash.year.measures import GROWTH_MAX, Size, size_of
from tests.crash.year.year import Year

DAYS = 365
SECONDS_MAX = 1_800.0
#: Day whose sizes the final ones are compared with.
FIRST_DAYS = 30
#: Growth is checked only in runs of at least this many days; earlier it means nothing.
JUDGED_DAYS = 2 * FIRST_DAYS
TOLD_EVERY_DAYS = 30


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A run that broke no promise."""

    counts: dict[str, int]
    shortfalls: list[str]
    first: Size | None
    last: Size
    seconds: float

    @property
    def growth(self) -> dict[str, float]:
        """Final size as a multiple of the size after day 30; empty after a short run."""
        return self.last.growth(self.first) if self.first is not None else {}


async def live(seed: int, days: int, seconds: float, folder: Path) -> Ended:
    """Run this many days, or as many as the time allows; raise Wrong if a promise is broken."""
    began = time.monotonic()
    machine = Machine(folder)
    year = Year(machine, seed)
    first = None
    try:
        await year.begin()
        while year.day < days and time.monotonic() - began < seconds:
            await year.live()
            if year.day == FIRST_DAYS:
                first = await _measured(machine)
            if year.day % TOLD_EVERY_DAYS == 0:
                say(f"day {year.day}: {time.monotonic() - began:.0f} s")
        last = await _measured(machine)
    except BaseException as error:
        error.add_note(f"seed {seed}, day {year.day}")
        raise
    finally:
        await machine.close()
    took_s = round(time.monotonic() - began, 1)
    return Ended(
        counts=dict(year.counts),
        shortfalls=year.shortfalls,
        first=first,
        last=last,
        seconds=took_s,
    )


async def _measured(machine: Machine) -> Size:
    """Measure right after a start, when no work is in progress."""
    await machine.catch_up()
    await machine.restart()
    await machine.catch_up()
    return size_of(machine.server.broker, machine.data)


def run(seed: int, days: int = DAYS, seconds: float = SECONDS_MAX) -> int:
    """Run and print the report; return 1 if something is wrong."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="escrowmq-year-") as folder:
        try:
            ended = asyncio.run(live(seed, days, seconds, Path(folder)))
        except Exception:  # noqa: BLE001 - any error is a finding
            say(traceback.format_exc())
            say(f"again: make year ARGS='--seed {seed} --days {days}'")
            return 1
    faults = list(ended.shortfalls)
    if ended.counts["days"] < days:
        faults.append(f"{ended.counts['days']} of {days} days in {seconds} s")
    if ended.counts["days"] >= JUDGED_DAYS:
        faults += [
            f"{name} grew {times} times"
            for name, times in ended.growth.items()
            if times > GROWTH_MAX
        ]
    report: dict[str, Any] = {
        "seed": seed,
        **ended.counts,
        "after_30_days": None if ended.first is None else asdict(ended.first),
        "at_the_end": asdict(ended.last),
        "growth": ended.growth,
        "seconds": ended.seconds,
        "faults": faults,
    }
    say(json.dumps(report))
    return 1 if faults else 0


def say(text: str) -> None:
    """Print a line and flush it, so that a long run can be watched."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
