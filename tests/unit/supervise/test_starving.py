"""Detect processes that get no CPU time, with real processes on a busy CPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import islice

import pytest

from escrowmq.supervise.starving import LOOKS, Share, StarvationWatch
from tests.unit.supervise.hungry import busy_processor, running

LOOK_S = 0.1
DEADLINE_S = 30.0

#: Arguments: CPU number and Linux scheduling policy. The parent process only waits.
HUNGRY = """
import os, sys
if os.fork():
    os.wait()
os.sched_setaffinity(0, [int(sys.argv[1])])
print("hungry", flush=True)
os.sched_setscheduler(0, int(sys.argv[2]), os.sched_param(0))
while True: pass
"""
FULL = "print('full', flush=True)\nimport sys; sys.stdin.read()"


def looks_at(pid: int) -> Iterator[Share | None]:
    """Yield one reading every `LOOK_S` seconds, because a share covers a span of time."""
    watch = StarvationWatch(pid)
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        yield watch.starved(time.monotonic())
        threading.Event().wait(LOOK_S)


def is_ever_starved(pid: int) -> bool:
    """Return whether the process counts as starved in any of `3 * LOOKS` readings."""
    return any(islice(looks_at(pid), 3 * LOOKS))


def test_a_child_that_gets_only_the_rest_of_a_busy_one_starves() -> None:
    with (
        busy_processor() as processor,
        running(HUNGRY, str(processor), str(os.SCHED_IDLE)) as hungry,
    ):
        # Linux accounts a wait when it ends. Until then the process looks idle.
        share = next(filter(None, looks_at(hungry)))
    assert share.took_s >= LOOKS * LOOK_S
    assert share.waited_s >= 20 * share.ran_s


def test_a_child_that_gets_a_share_does_not_starve() -> None:
    with (
        busy_processor() as processor,
        running(HUNGRY, str(processor), str(os.SCHED_OTHER)) as fed,
    ):
        assert not is_ever_starved(fed)


def test_a_child_that_wants_no_time_does_not_starve() -> None:
    with running(FULL) as full:
        assert not is_ever_starved(full)


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    with running(FULL) as gone:
        pass
    assert not is_ever_starved(gone)


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "is_starving"),
    [(0.0, 30.0, True), (1.5, 30.0, True), (1.6, 30.0, False), (0.0, 29.0, False), (0, 0, False)],
)
def test_it_takes_a_long_wait_for_next_to_nothing(
    ran_s: float, waited_s: float, *, is_starving: bool
) -> None:
    assert Share(ran_s=ran_s, waited_s=waited_s, took_s=60.0).is_starving is is_starving
