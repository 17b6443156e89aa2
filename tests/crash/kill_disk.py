"""Faulty real disks: one kills its process at a chosen operation, one holds back log writes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import NoReturn

from escrowmq.store.disk.disk import Bytes, OsDisk, OsFile
from escrowmq.store.log.commit_log import TEMPORARY

_HELD_MAX = 4


def die() -> NoReturn:
    """End this process as if from outside: nothing is closed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process survived SIGKILL")


class DyingDisk(OsDisk):
    """Kills the process at its ``die_at``-th change of a file or directory; 0 means never.

    If that change is a write, ``part`` of its bytes still reach the kernel. A create, rename or
    remove is still made if ``part`` is at least 0.5. A truncate or flush is not made.
    """

    def __init__(self, root: Path, *, die_at: int = 0, part: float = 0.0) -> None:
        super().__init__(root)
        self._die_at = die_at
        self._part = part
        self._count = 0
        self._lock = threading.Lock()

    def is_last(self) -> bool:
        """Count a change; return whether it is the last one."""
        with self._lock:
            self._count += 1
            return self._count == self._die_at

    def last_size(self, size: int) -> int:
        """How many bytes of the last write reach the kernel."""
        return int(size * self._part)

    def _die_if(self, *, is_last: bool, is_done: bool) -> None:
        if is_last and is_done == (self._part >= 0.5):
            die()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        is_last = create and self.is_last()
        self._die_if(is_last=is_last, is_done=False)
        file = self.wrapped(super().open(path, create=create), path)
        self._die_if(is_last=is_last, is_done=True)
        return file

    def wrapped(self, file: OsFile, path: str) -> OsFile:
        """Wrap the file so that its changes count."""
        del path
        return DyingFile(file._descriptor, self)

    def rename(self, old: str, new: str) -> None:
        is_last = self.is_last()
        self._die_if(is_last=is_last, is_done=False)
        super().rename(old, new)
        self._die_if(is_last=is_last, is_done=True)

    def remove(self, path: str) -> None:
        is_last = self.is_last()
        self._die_if(is_last=is_last, is_done=False)
        super().remove(path)
        self._die_if(is_last=is_last, is_done=True)

    def flush_directory(self, path: str) -> None:
        if self.is_last():
            die()
        super().flush_directory(path)


class DyingFile(OsFile):
    """A file of a ``DyingDisk``."""

    __slots__ = ("_disk",)

    def __init__(self, descriptor: int, disk: DyingDisk) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def write_at(self, offset: int, data: Bytes) -> None:
        if self._disk.is_last():
            super().write_at(offset, data[: self._disk.last_size(len(data))])
            die()
        super().write_at(offset, data)

    def truncate(self, size: int) -> None:
        if self._disk.is_last():
            die()
        super().truncate(size)

    def flush(self) -> None:
        if self._disk.is_last():
            die()
        super().flush()


class LaggingDisk(DyingDisk):
    """A planted bug: writes to the log stay in the process until there are more than four of them.

    They also reach the kernel before anything else changes, so that no checkpoint is ahead of the
    log.
    """

    def __init__(self, root: Path, *, die_at: int = 0, part: float = 0.0) -> None:
        super().__init__(root, die_at=die_at, part=part)
        self.held: list[tuple[OsFile, int, bytes]] = []

    def wrapped(self, file: OsFile, path: str) -> OsFile:
        if path.startswith("commitlog") and not path.endswith(TEMPORARY):
            return LaggingFile(file._descriptor, self)
        return super().wrapped(file, path)

    def is_last(self) -> bool:
        self.let_go()
        return super().is_last()

    def let_go(self) -> None:
        """Write the held data to the kernel, which is too late."""
        with self._lock:
            for file, offset, data in self.held:
                OsFile.write_at(file, offset, data)
            self.held.clear()


class LaggingFile(OsFile):
    """A segment of a ``LaggingDisk``."""

    __slots__ = ("_disk",)

    def __init__(self, descriptor: int, disk: LaggingDisk) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def write_at(self, offset: int, data: Bytes) -> None:
        if DyingDisk.is_last(self._disk):
            die()
        self._disk.held.append((self, offset, bytes(data)))
        if len(self._disk.held) > _HELD_MAX:
            self._disk.let_go()

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        self._disk.let_go()
        super().close()

    def read_at(self, offset: int, size: int) -> bytes:
        whole = bytearray(super().read_at(offset, size))
        for file, at, data in list(self._disk.held):
            start, end = max(at, offset), min(at + len(data), offset + size)
            if file is self and start < end:
                whole[start - offset : end - offset] = data[start - at : end - at]
        return bytes(whole)
