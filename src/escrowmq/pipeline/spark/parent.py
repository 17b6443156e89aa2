"""A child process that ends when its parent ends, no matter how the parent ended.

The parent must give the child a pipe for standard input and keep the other end open; this works on
every system. Linux also signals the child, which is faster and works while the child is busy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
#: How long a child has to stop by itself after its parent ends.
END_S_MAX = 15.0

_READ_BYTES = 4_096


def end_with_parent(parent: int) -> None:
    """From now on, receive SIGTERM when the process with this id ends.

    If this process does not stop in time, it is killed, together with its process group if it leads
    one.
    """
    if sys.platform == "linux":
        # The kernel watches the thread that started this process, so the parent must start it from
        # its main thread.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # The parent may have ended before the prctl call.
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
