"""A disk in memory that can fail like a real disk, and can lose power.

``crash`` is the power cut: it returns a new disk with all flushed operations and any subset of the
others (see ``disk_state`` for the rules, ``survivors`` for the subsets). ``fail_after``,
``flip_bit`` and the switches are failures of the disk itself.

Every change is a value that passes through ``perform`` and is kept in ``journal``. A test can plant
a bug with a subclass whose ``perform`` drops or changes operations.
"""

from __future__ import annotations

import errno as codes
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

from escrowmq.store.disk.disk import Bytes, File, checked_path
from escrowmq.store.disk.foreign_names import listed
from escrowmq.testing import journal
from escrowmq.testing.disk_image import EMPTY, DiskImage, parents_of
from escrowmq.testing.disk_state import DiskState, Inode
from escrowmq.testing.faults import Fault, planned
from escrowmq.testing.faulty_mapping import FaultyMapping
from escrowmq.testing.journal import DataOperation, Operation, PendingOperation, directory_of
from escrowmq.testing.survivors import Survivors, nothing_survives


class DiskCall(StrEnum):
    """The calls that ``fail_after`` can make fail."""

    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    FLUSH = "flush"
    CREATE = "create"
    RENAME = "rename"
    REMOVE = "remove"
    MAKE_DIRECTORY = "make_directory"
    FLUSH_DIRECTORY = "flush_directory"


class FaultyFile:
    """An open file of a ``FaultyDisk``. It stays usable after its name is removed."""

    __slots__ = ("_disk", "_inode", "_open")

    def __init__(self, disk: FaultyDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True

    def _checked(self, *numbers: int) -> Inode:
        if not self._open:
            raise _error(codes.EBADF, self._inode.path)
        if min(numbers, default=0) < 0:
            raise _error(codes.EINVAL, self._inode.path)
        return self._inode

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer at the end of the file."""
        inode = self._checked(offset, size)
        self._disk.raise_planned(DiskCall.READ, inode.path)
        # No memoryview here: while one exists, another thread cannot grow the file.
        return bytes(inode.visible[offset : offset + size])

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of ``data``, or raise OSError; a prefix of it may be written in that case."""
        self._disk.write(self._checked(offset), offset, bytes(data))

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        self._disk.truncate(self._checked(size), size)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._checked().visible)

    def flush(self) -> None:
        """Make all data operations so far durable, unless the disk lies."""
        self._disk.flush(self._checked())

    def close(self) -> None:
        """Close the handle; no error if it is already closed."""
        self._open = False


class FaultyDisk:
    """A ``Disk`` in memory, made from an image; see the module's docstring."""

    def __init__(self, image: DiskImage = EMPTY) -> None:
        #: The image it was made from. Applying ``journal`` to ``start`` gives the current disk.
        self.start = image
        self.journal: list[Operation] = []
        #: If set, flushes of files or directories return without making anything durable.
        self.lying_flush = False
        self.lying_flush_directory = False
        #: If set, every change raises EROFS.
        self.read_only = False
        #: Growing beyond this limit raises ENOSPC, after writing as much as fits.
        self.capacity_bytes: int | None = None
        #: Allocated bytes by path.
        self._allocated: dict[str, int] = {}
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._state = DiskState(image)

    @classmethod
    def load(cls, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> Self:
        """Make a disk with these files, all durable, and the directories they need."""
        return cls(DiskImage.of(files, directories))

    @classmethod
    def from_directory(cls, root: Path) -> Self:
        """Make a disk with the content of a real directory."""
        return cls(DiskImage.from_directory(root))

    @classmethod
    def replay(cls, journal: Iterable[Operation], start: DiskImage = EMPTY) -> Self:
        """Make the disk as of the end of these operations; see ``CrashExplorer`` for prefixes."""
        disk = cls(start)
        for operation in journal:
            disk.perform(operation)
        return disk

    def perform(self, operation: Operation) -> None:
        """Record the operation in the journal and apply it. Override this to plant a bug."""
        with self._lock:  # The store may flush in one thread while it writes in another.
            self.journal.append(operation)
            self._state.apply(operation)

    def mark(self, note: object) -> None:
        """Record a note in the journal."""
        self.perform(journal.JournalNote(note))

    def snapshot(self) -> dict[str, bytes]:
        """Return all files as reads see them."""
        return dict(self._state.image().files)

    def durable_snapshot(self) -> dict[str, bytes]:
        """Return all files as a power cut leaves them if no pending operation survives."""
        return dict(self._state.crash_image().files)

    def to_directory(self, root: Path) -> None:
        """Write the files as reads see them into a real directory."""
        self._state.image().to_directory(root)

    # Power cuts.

    @property
    def pending(self) -> tuple[PendingOperation, ...]:
        """Operations that a power cut may keep or lose, in their order."""
        return self._state.pending

    def crash_image(self, survivors: Survivors) -> DiskImage:
        """Return what a power cut leaves now."""
        return self._state.crash_image(survivors)

    def crash(self, survivors: Survivors) -> FaultyDisk:
        """Return a new disk, without faults, with the content that a power cut leaves now."""
        return FaultyDisk(self.crash_image(survivors))

    # The port.

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        """Open for reading and writing. Raise FileNotFoundError unless it exists or ``create``."""
        path = checked_path(path)
        if self._is_directory(path):
            raise _error(codes.EISDIR, path)
        if path not in self._state.names:
            self._require_directory(directory_of(path))
            if not create:
                raise _error(codes.ENOENT, path)
            self._refuse(DiskCall.CREATE, path)
            self.perform(journal.Create(len(self._state.inodes), path))
        return FaultyFile(self, self._state.inodes[self._state.names[path]])

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name."""
        path = checked_path(path)
        return path in self._state.names or self._is_directory(path)

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if the directory does not exist."""
        path = checked_path(path)
        everything = (*self._state.names, *self._state.directories)
        return listed(name.rpartition("/")[2] for name in everything if directory_of(name) == path)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably; no error if it exists."""
        path = checked_path(path)
        if any(name in self._state.names for name in (path, *parents_of(path))):
            raise _error(codes.ENOTDIR, path)
        if not self._is_directory(path):
            self._refuse(DiskCall.MAKE_DIRECTORY, path)
            self.perform(journal.MakeDirectory(path))

    def make_directories(self, paths: Sequence[str]) -> None:
        """See ``Disk.make_directories``."""
        for path in paths:
            self.make_directory(path)

    def flush_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """See ``Disk.flush_all``. Flushes one after the other, so that each can fail."""
        for file in files:
            file.flush()
        for directory in directories:
            self.flush_directory(directory)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing ``new``.

        Both names must be in the same directory. Otherwise this raises EXDEV, because a directory
        may be a mount point, and because two directories cannot be flushed atomically.
        """
        old, new = checked_path(old), checked_path(new)
        self._require_directory(directory_of(new))
        if self._is_directory(old) or self._is_directory(new):
            raise _error(codes.EISDIR, old)
        if old not in self._state.names:
            raise _error(codes.ENOENT, old)
        if directory_of(old) != directory_of(new):
            raise _error(codes.EXDEV, old)
        self._refuse(DiskCall.RENAME, old)
        if old != new:
            self.perform(journal.Rename(self._state.names[old], old, new))

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        path = checked_path(path)
        if self._is_directory(path):
            raise _error(codes.EISDIR, path)
        if path in self._state.names:
            self._refuse(DiskCall.REMOVE, path)
            self.perform(journal.Remove(self._state.names[path], path))

    def flush_directory(self, path: str) -> None:
        """Make all current names in the directory durable, unless the disk lies."""
        path = checked_path(path)
        self._require_directory(path)
        # After an error the names stay pending: unlike data, they are not marked clean.
        self.raise_planned(DiskCall.FLUSH_DIRECTORY, path)
        if not self.lying_flush_directory:
            self.perform(journal.FlushDirectory(path))

    # Calls from open files.

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        """See ``File.write_at``."""
        if self.read_only:
            raise _error(codes.EROFS, inode.path)
        fits = self._fitting_bytes(inode, offset, len(data))
        fault = planned(self._faults, DiskCall.WRITE, inode.path)
        landed = data[: fits if fault is None else min(fits, fault.short_bytes)]
        if landed:
            self.perform(journal.Write(inode.file, inode.path, offset, landed))
        if fault is not None:
            raise _error(fault.errno, inode.path)
        if fits < len(data):
            raise _error(codes.ENOSPC, inode.path)

    def truncate(self, inode: Inode, size: int) -> None:
        """See ``File.truncate``."""
        self._refuse(DiskCall.TRUNCATE, inode.path)
        if self._fitting_bytes(inode, 0, size) < size:
            raise _error(codes.ENOSPC, inode.path)
        self.perform(journal.Truncate(inode.file, inode.path, size))

    def flush(self, inode: Inode) -> None:
        """See ``File.flush``."""
        fault = planned(self._faults, DiskCall.FLUSH, inode.path)
        if fault is not None:
            landed = fault.survivors(self._state.pending_of(inode))
            data = tuple(item for item in landed if isinstance(item, DataOperation))
            self.perform(journal.FlushFailed(inode.file, inode.path, data))
            raise _error(fault.errno, inode.path)
        if not self.lying_flush:
            self.perform(journal.Flush(inode.file, inode.path))

    # Faults.

    def fail_after(
        self,
        kind: DiskCall,
        count: int,
        errno: int,
        *,
        times: int | None = 1,
        under: str = "",
        short_bytes: int = 0,
        survivors: Survivors = nothing_survives,
    ) -> None:
        """Let ``count`` calls succeed, and then let ``times`` calls fail (None: all).

        Only calls whose path starts with ``under`` count. A failing write still writes its first
        ``short_bytes``. For a failing flush, ``survivors`` chooses the operations that reach the
        disk.
        """
        self._faults.append(
            Fault(
                kind=kind,
                successes_left=count,
                failures_left=times,
                errno=errno,
                under=under,
                short_bytes=short_bytes,
                survivors=survivors,
            )
        )

    def forgive(self) -> None:
        """Cancel all planned failures."""
        self._faults.clear()

    def flip_bit(self, path: str, byte_offset: int, bit: int) -> None:
        """Flip one bit of a file: in durable content, in visible content and in pending writes."""
        inode = self._state.inodes[self._state.names[checked_path(path)]]
        if not (0 <= byte_offset < len(inode.visible) and 0 <= bit < 8):
            raise ValueError(f"no bit {bit} of byte {byte_offset} in {path!r}")
        self.perform(journal.FlipBit(inode.file, inode.path, byte_offset, bit))

    def raise_planned(self, kind: DiskCall, path: str) -> None:
        """Raise if a planned fault is due."""
        fault = planned(self._faults, kind, path)
        if fault is not None:
            raise _error(fault.errno, path)

    def _refuse(self, kind: DiskCall, path: str) -> None:
        if self.read_only:
            raise _error(codes.EROFS, path)
        self.raise_planned(kind, path)

    def free_bytes(self) -> int:
        """See ``Disk.free_bytes``. Without a capacity there is always room."""
        if self.capacity_bytes is None:
            return sys.maxsize
        return max(0, self.capacity_bytes - self._used_bytes())

    def allocate(self, path: str, size: int) -> None:
        """See ``Disk.allocate``. A power cut loses the allocation."""
        if size - self.allocated(path) > self.free_bytes():
            raise _error(codes.ENOSPC, path)
        self.open(path, create=True).close()
        self._allocated[checked_path(path)] = size

    def allocated(self, path: str) -> int:
        """See ``Disk.allocated``."""
        path = checked_path(path)
        return self._allocated.get(path, 0) if path in self._state.names else 0

    def map(self, path: str, size: int) -> FaultyMapping:
        """See ``Disk.map``. A change that was not flushed is lost with the process."""
        return FaultyMapping(self.open(path), size)

    def local_path(self, path: str) -> str:
        """See ``Disk.local_path``: these files exist in memory only."""
        checked_path(path)
        return ""

    def _used_bytes(self) -> int:
        files = (len(self._state.inodes[file].visible) for file in self._state.names.values())
        return sum(files) + sum(map(self.allocated, self._allocated))

    def _fitting_bytes(self, inode: Inode, offset: int, wanted: int) -> int:
        size = len(inode.visible)
        if self.capacity_bytes is None or offset + wanted <= size:
            return wanted
        return min(wanted, max(0, size + self.capacity_bytes - self._used_bytes() - offset))

    # Names.

    def _is_directory(self, path: str) -> bool:
        return path == "" or path in self._state.directories

    def _require_directory(self, path: str) -> None:
        if self._is_directory(path):
            return
        names = self._state.names
        under_a_file = any(name in names for name in (path, *parents_of(path)))
        raise _error(codes.ENOTDIR if under_a_file else codes.ENOENT, path)


def _error(errno: int, path: str) -> OSError:
    # OSError picks the subclass, such as FileNotFoundError.
    return OSError(errno, os.strerror(errno), path)
