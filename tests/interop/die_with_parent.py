"""Become another program that the kernel kills as soon as our parent is gone.

    python -S -E die_with_parent.py PARENT_PID COMMAND...

Done between fork and exec this would run in a process with other threads' locks held; a small
program of its own has none.  The kernel watches the *thread* that started us, so whoever starts
processes must do it from one that lives as long as they shall.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
