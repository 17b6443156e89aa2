"""Become another program that the kernel kills as soon as our parent ends.

    python -S -E die_with_parent.py PARENT_PID COMMAND...

Between fork and exec, this code would run while locks of other threads are held; a separate small
program holds no such locks. The kernel watches the *thread* that started us, so processes must be
started from a thread that lives as long as they do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the call to prctl.
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
