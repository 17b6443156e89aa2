"""Lowering this process's priority below that of a broker on the same machine."""

from __future__ import annotations

import os

#: Lower than any niceness: runs only when no other process wants the processor.
LEFT_OVER = 20


def step_back(niceness: int) -> None:
    """Lower the priority of this process, and of the JVM and the workers that it starts later.

    A processor that runs a nice process still counts as busy, so a process that wakes up waits for
    another processor. A processor that runs an idle-class process counts as free and switches at
    once.
    """
    os.nice(niceness)
    if niceness >= LEFT_OVER and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
