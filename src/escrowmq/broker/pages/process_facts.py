"""Process metrics of the operating system, under the names that Prometheus's libraries use."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

from escrowmq.broker.pages import metric_table as table
from escrowmq.broker.pages.exposition import Metric

_PROC = Path("/proc/self")


def process_facts() -> dict[Metric, float]:
    """Return memory, CPU time and open files; what the system does not report is left out."""
    facts: dict[Metric, float] = {table.MEMORY: _memory_bytes(), table.CPU: time.process_time()}
    with suppress(OSError), os.scandir(_PROC / "fd") as files:
        # One of them is the scan's own file descriptor.
        facts[table.FILES] = sum(1 for _ in files) - 1
    return facts


def _memory_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = int((_PROC / "statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    # Without /proc, the system reports only the peak.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
