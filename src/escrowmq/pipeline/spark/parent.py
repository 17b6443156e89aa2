"""A child process that ends when its parent is gone, however the parent went.

The parent must give it a pipe for standard input, and keep the other end open: that works on every
system.  Linux tells sooner, also while the child is busy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
#: How long a child has to end by itself once its parent is gone.
END_S_MAX = 15.0

_READ_BYTES = 4_096


def end_with_parent(parent: int) -> None:
    """From now on, be told to stop (SIGTERM) when the process with this id is gone.

    Whoever does not stop in time is ended, with its whole process group if it leads one.
    """
    if sys.platform == "linux":
        # The kernel watches the thread that started us: the parent must do that in its main one.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # It may have gone before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), _READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S_MAX)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
