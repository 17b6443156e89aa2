"""Stepping back for a broker on the same machine."""

from __future__ import annotations

import os

#: Further back than any niceness: the processor only when nobody else wants it.
LEFT_OVER = 20


def step_back(niceness: int) -> None:
    """Let others go first; Java and the workers, which are started later, do so too.

    A processor that runs a nice process is busy all the same: whoever wakes up then waits for
    another processor.  One that runs what is left over counts as free, and is given up at once.
    """
    os.nice(niceness)
    if niceness >= LEFT_OVER and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
