"""Lock that allows one process per data directory.

The lock is an operating system lock (flock) on ``DATA/lock``: the kernel releases it when its
holder dies, however it dies. The file is never removed, because after a removal two processes could
lock two different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple, Self

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.disk import OsDisk

LOCK_NAME = "lock"


class DirectoryLock:
    """Lock on the data directory ``path``, held until ``close``; creates the directory if needed.

    A forked child shares the lock until it ends. Until then a restart is refused, which is the safe
    side. Programs started with exec do not inherit the lock.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        try:
            OsDisk(path).make_directory("")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path / LOCK_NAME, flags, 0o640)
            self._hold(path)
        except StoreUnusable:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise StoreUnusable(
                "data_directory_read_only",
                "the data directory cannot be written: let this user write it, or use another one",
                path=str(path),
                reason=error.strerror,
            ) from error

    def _hold(self, path: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreUnusable(
                "data_directory_locked",
                "another process serves this data directory: stop it, or use another directory",
                path=str(path),
                pid=_holder_pid(self._descriptor),
            ) from None
        text = b"%d\n" % os.getpid()
        # Write the new number before truncating, so a reader in between still finds one line.
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def close(self) -> None:
        """Release the directory; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # Close, do not unlock: an unlock in a forked child would also release our lock.
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LockHolder(NamedTuple):
    """The process that serves a data directory; its pid may be unknown."""

    pid: int | None


def holder_of(path: Path) -> LockHolder | None:
    """Return the process that holds this data directory, or None; changes nothing in it.

    The check locks the file for an instant, and a process that starts just then is refused.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockHolder(_holder_pid(descriptor))
    finally:
        os.close(descriptor)
    return None


def _holder_pid(descriptor: int) -> int | None:
    # The line is missing between the holder's lock and its first write.
    line = os.pread(descriptor, 32, 0).partition(b"\n")[0]
    return int(line) if line.isdigit() else None
