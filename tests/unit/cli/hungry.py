"""Processes that share one processor, on which somebody is busy all the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Argument: the processor.
BUSY = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
print("busy", flush=True)
while True: pass
"""


@contextmanager
def busy_processor() -> Iterator[int]:
    """A processor that has no time to spare."""
    processor = max(os.sched_getaffinity(0))
    with running(BUSY, str(processor)):
        yield processor


@contextmanager
def running(program: str, *arguments: str) -> Iterator[int]:
    """The process id of a program that has said its first word; ends with all that it started."""
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
            # Until nobody is left that holds the other end.
            process.stdout.read()
