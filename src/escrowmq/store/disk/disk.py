"""The port to the file system, and its real adapter.

The store accesses files only through ``Disk``, so that a test can record operations, tear writes,
lose unflushed data and inject errors. Paths are relative to the disk's root and use ``/``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from escrowmq.store.disk.foreign_names import listed
from escrowmq.store.disk.mapping import OsMapping, map_file

if TYPE_CHECKING:
    from escrowmq.store.disk.mapping import MappedBytes

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of ``data`` or raise OSError; a gap before ``offset`` reads as zeros."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def size(self) -> int:
        """Return the number of bytes in the file."""

    def flush(self) -> None:
        """Return once every byte written so far is on the disk."""

    def close(self) -> None:
        """Close the file."""


class Disk(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError if missing and not ``create``."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is no such directory.

        Names that the file system itself creates are left out (see ``listed``).
        """

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; no error if it exists. Durable when it returns."""

    def make_directories(self, paths: Sequence[str]) -> None:
        """Make many directories as ``make_directory`` does, but faster."""

    def flush_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Flush all of these, in any order; faster than one by one."""

    def rename(self, old: str, new: str) -> None:
        """Rename ``old`` to ``new`` atomically; an existing ``new`` is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""

    def flush_directory(self, path: str) -> None:
        """Return once names created, renamed or removed in this directory are on the disk."""

    def free_bytes(self) -> int:
        """Return the bytes that can still be written, as far as the file system can tell."""

    def allocate(self, path: str, size: int) -> None:
        """Reserve ``size`` bytes of the disk for a file, with any content; ENOSPC if it is full."""

    def allocated(self, path: str) -> int:
        """Return the bytes of the disk that a file occupies; 0 if there is no such file."""

    def map(self, path: str, size: int) -> MappedBytes:
        """Map the first ``size`` bytes of a file, which ``allocate`` has reserved."""

    def local_path(self, path: str) -> str:
        """Return the operating system's name of a file; empty if it has none."""


def checked_path(path: str) -> str:
    """Return the path itself, "" for the root; ValueError if it might lead out of the root.

    Only the spelling is checked, because an operator may have put a link to another volume there.
    """
    if path in ("", "."):
        return ""
    if "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"not a plain path below the disk's root: {path!r}")
    return path


def read_whole(disk: Disk, path: str) -> bytes:
    """Return the content of a file."""
    with contextlib.closing(disk.open(path)) as file:
        return file.read_at(0, file.size())


def write_whole(disk: Disk, path: str, data: Bytes) -> None:
    """Write and flush a file with this content; the caller flushes the directory for its name."""
    with contextlib.closing(disk.open(path, create=True)) as file:
        # A crash may have left a longer file here.
        file.truncate(0)
        file.write_at(0, data)
        file.flush()


@contextlib.contextmanager
def on_error(close: Callable[[], None]) -> Iterator[None]:
    """Call ``close`` if the block fails; otherwise the files stay open for the caller."""
    try:
        yield
    except BaseException:
        close()
        raise


# Larger than any descriptor of a process, so that calls after close raise EBADF and never reach
# another file. (With -1, the flush calls would raise ValueError instead.)
_NO_DESCRIPTOR = 2**31 - 1


class OsFile:
    """A file of the operating system; only ``close`` closes its descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, offset)
        # One call may return less than the file has; only an empty result means the end.
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of ``data`` or raise OSError; a gap before ``offset`` reads as zeros."""
        written = os.pwrite(self._descriptor, data, offset)
        if written != len(data):
            self._write_rest(offset, data, written)

    def _write_rest(self, offset: int, data: Bytes, written: int) -> None:
        # Cast to bytes, because len() of a view of wider items does not count bytes.
        view = memoryview(data).cast("B")
        while written < len(view):
            # A call that makes no progress raises: ENOSPC on a full disk, EFBIG above a limit.
            written += os.pwrite(self._descriptor, view[written:], offset + written)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Return the number of bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def flush(self) -> None:
        """Return once every byte written so far is on the disk."""
        _flush_data(self._descriptor)

    def close(self) -> None:
        """Close the file; no error if it is closed already."""
        descriptor, self._descriptor = self._descriptor, _NO_DESCRIPTOR
        if descriptor != _NO_DESCRIPTOR:
            os.close(descriptor)


class OsDisk:
    """The directory ``root`` of the operating system's file system.

    With ``read_only`` every change raises OSError, whatever the file system would allow.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._access = os.O_RDONLY if read_only else os.O_RDWR
        self._root = os.path.abspath(root)
        existing = self._root
        while not os.path.isdir(existing) and existing != os.path.dirname(existing):
            existing = os.path.dirname(existing)
        # Directories whose names are known to be durable. The root, or its nearest existing parent,
        # counts as durable. A directory below may be left by a process that was killed before it
        # flushed the directory's name, so that name is flushed again, once.
        self._named = {existing}

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{checked}" if (checked := checked_path(path)) else self._root

    def _refuse_if_read_only(self, path: str) -> None:
        if self._access == os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open for reading and writing; FileNotFoundError if missing and not ``create``."""
        if create:
            self._refuse_if_read_only(path)
        flags = self._access | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(self._absolute(path), flags, _FILE_MODE))

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""
        # Not os.path.exists, which reports an I/O error as "no": the store would start empty.
        try:
            os.stat(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""
        try:
            names = os.listdir(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return listed(names)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; no error if it exists. Durable when it returns."""
        self.make_directories([path])

    def make_directories(self, paths: Sequence[str]) -> None:
        """Make many directories as ``make_directory`` does, but faster."""
        made: dict[str, None] = {}
        for path in paths:
            self._refuse_if_read_only(path)
            directory = self._absolute(path)
            unnamed = []
            while directory not in self._named and directory not in made:
                unnamed.append(directory)
                directory = os.path.dirname(directory)
            for directory in reversed(unnamed):
                try:
                    os.mkdir(directory, _DIRECTORY_MODE)
                except FileExistsError:
                    if not os.path.isdir(directory):
                        raise _not_a_directory(directory) from None
                made[directory] = None
        # Flush each parent only once.
        _call_each(_flush_names, list(dict.fromkeys(map(os.path.dirname, made))))
        self._named.update(made)

    def flush_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Flush all of these, in any order; faster than one by one."""
        _call_each(lambda file: file.flush(), files)
        _call_each(self.flush_directory, directories)

    def rename(self, old: str, new: str) -> None:
        """Rename ``old`` to ``new`` atomically; an existing ``new`` is replaced."""
        self._refuse_if_read_only(old)
        os.replace(self._absolute(old), self._absolute(new))

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        self._refuse_if_read_only(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._absolute(path))

    def flush_directory(self, path: str) -> None:
        """Return once names created, renamed or removed in this directory are on the disk."""
        self._refuse_if_read_only(path)
        _flush_names(self._absolute(path))

    def free_bytes(self) -> int:
        """Return the bytes that can still be written, as far as the file system can tell."""
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def allocate(self, path: str, size: int) -> None:
        """Reserve ``size`` bytes of the disk for a file, with any content; ENOSPC if it is full."""
        self._refuse_if_read_only(path)
        descriptor = os.open(
            self._absolute(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE
        )
        try:
            _allocate(descriptor, size)
        finally:
            os.close(descriptor)

    def allocated(self, path: str) -> int:
        """Return the bytes of the disk that a file occupies; 0 if there is no such file."""
        try:
            return os.stat(self._absolute(path)).st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def map(self, path: str, size: int) -> OsMapping:
        """Map the first ``size`` bytes of a file, which ``allocate`` has reserved."""
        self._refuse_if_read_only(path)
        return map_file(self._absolute(path), size)

    def local_path(self, path: str) -> str:
        """Return the operating system's name of a file."""
        return self._absolute(path)


# Messages may be private, so other users get no access, whatever the umask.
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750

#: Unit of ``st_blocks``, which does not depend on the file system.
_BLOCK_BYTES = 512

_FLUSHERS = 8
_FLUSHES_APART_MAX = 16

# fdatasync skips timestamps but not the size; not every system has it.
_flush_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def _call_each(flush: Callable[[T], None], each: Sequence[T]) -> None:
    """Flush each item; many run in parallel, so that the system can combine their flushes."""
    if len(each) <= _FLUSHES_APART_MAX:
        for one in each:
            flush(one)
        return

    def flush_share(share: Sequence[T]) -> None:
        for one in share:
            flush(one)

    # This writes back everything at once and leaves little for each flush. It guarantees nothing,
    # so each item is still flushed.
    os.sync()
    with ThreadPoolExecutor(_FLUSHERS, thread_name_prefix="flush_all") as flushers:
        # One share per thread: handing over items one by one takes longer than most flushes.
        shares = [each[first::_FLUSHERS] for first in range(_FLUSHERS)]
        # Consume all results, so that an error in any thread is raised.
        list(flushers.map(flush_share, shares))


def _write_zeros(descriptor: int, _start: int, size: int) -> None:
    zeros = bytes(1024 * 1024)
    for at in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - at], at)


# Not every system has posix_fallocate.
_fallocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _write_zeros)


def _allocate(descriptor: int, size: int) -> None:
    try:
        _fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        _write_zeros(descriptor, 0, size)


def _not_a_directory(path: str) -> OSError:
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def _flush_names(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
