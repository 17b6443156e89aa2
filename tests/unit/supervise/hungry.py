"""Processes that share one CPU with a busy loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Argument: the number of the CPU.
BUSY = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
print("busy", flush=True)
while True: pass
"""


@contextmanager
def busy_processor() -> Iterator[int]:
    """Yield the number of a CPU that a busy loop keeps at 100 %."""
    processor = max(os.sched_getaffinity(0))
    with running(BUSY, str(processor)):
        yield processor


@contextmanager
def running(program: str, *arguments: str) -> Iterator[int]:
    """Yield the process id of a program after its first line, and kill its group at the end."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # The read ends when the last process of the group has closed the pipe.
            process.stdout.read()
