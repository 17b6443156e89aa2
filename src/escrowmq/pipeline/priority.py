"""Stepping back for a broker on the same machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Linux may share the processor between sessions first, and only then between processes.
AUTOGROUP = Path("/proc/self/autogroup")


def step_back(niceness: int) -> None:
    """Let others go first; Java and the workers, which are started later, do so too.

    Of dozens of threads each counts by itself, so together they would still take much.  Where we
    are a session of our own, as under ``escrowmq up``, all of them are made to count as one.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        # Not every system has it, and not everybody may.
        with suppress(OSError):
            AUTOGROUP.write_text(str(niceness), encoding="ascii")
