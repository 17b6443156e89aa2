"""One process per data directory.

The lock is the operating system's (flock) on ``DATA/lock``: it goes when its holder dies, however
it dies.  The file itself stays for ever, because a process that removed it could let two others
lock two different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk import OsDisk

LOCK_NAME = "lock"


class DirectoryLock:
    """Holds the data directory ``path``, which it makes if need be, until ``close``.

    A child made by a bare fork shares the lock until it ends, too: meanwhile a restart is refused,
    which is the safe side.  Programs that are executed do not inherit it.
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
        # First the new number, then the cut: who reads in between still finds one line.
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def close(self) -> None:
        """Let the directory go; no error if that is done already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # Closing, not unlocking: a forked child that closes its copy must not free ours.
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Holder(NamedTuple):
    """The process that serves a data directory; its number may not be known."""

    pid: int | None


def holder_of(path: Path) -> Holder | None:
    """Who holds this data directory, without holding it or changing anything in it.

    For the instant of asking, a process that starts just then is refused.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Holder(_holder_pid(descriptor))
    finally:
        os.close(descriptor)
    return None


def _holder_pid(descriptor: int) -> int | None:
    # None in the moment between the holder's lock and its first line.
    line = os.pread(descriptor, 32, 0).partition(b"\n")[0]
    return int(line) if line.isdigit() else None
