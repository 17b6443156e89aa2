"""The port to the file system, and its real adapter.

Everything the store does to files goes through ``Disk``, so that a test can record it, tear it,
lose what was not flushed, and fail it.  Paths are relative to the disk's root and use ``/``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer at the end of the file."""
        ...

    def write_at(self, offset: int, data: Bytes) -> None:
        """All of ``data``, or an OSError; a gap before ``offset`` reads as zeros."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def flush(self) -> None:
        """Return once every byte written so far is on the disk."""
        ...

    def close(self) -> None:
        """Give the handle back."""
        ...


class Disk(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless it exists or ``create``."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name is there."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory.

        Names that the file system puts there itself are left out (``listed``).
        """
        ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents; no error if it is there.  Durable when it returns."""
        ...

    def make_directories(self, paths: Sequence[str]) -> None:
        """Make all of them, as ``make_directory`` does, in less time."""
        ...

    def flush_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Flush each of them, in any order, in less time."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old`` in one step."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone."""
        ...

    def flush_directory(self, path: str) -> None:
        """Return once names made, renamed or removed in it are on the disk."""
        ...

    def free_bytes(self) -> int:
        """Bytes that can still be written, as far as anybody can tell."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Have a file hold so many bytes of the disk, whatever is in it; ENOSPC if they are not."""
        ...

    def allocated(self, path: str) -> int:
        """Bytes of the disk that a file holds; 0 if there is no such file."""
        ...


#: What file systems and desktops put into directories of their own accord.
_OF_FILE_SYSTEMS = frozenset(
    {
        "lost+found",
        ".snapshot",
        ".snapshots",
        ".zfs",
        ".DS_Store",
        ".Trashes",
        ".Spotlight-V100",
        ".fseventsd",
        ".TemporaryItems",
        ".directory",
    }
)
#: A file that is deleted while it is open, on NFS or through FUSE; a file's attributes on a Mac.
_PREFIXES_OF_FILE_SYSTEMS = (".nfs", ".fuse_hidden", "._", ".Trash-")


def listed(names: Iterable[str]) -> list[str]:
    """These names, sorted, without those that the file system or a desktop made."""
    return sorted(
        name
        for name in names
        if not (name in _OF_FILE_SYSTEMS or name.startswith(_PREFIXES_OF_FILE_SYSTEMS))
    )


def checked_path(path: str) -> str:
    """The path itself, "" for the root; ValueError if it might lead out of the root.

    Only the spelling is looked at: an operator may well have put a link to another volume there.
    """
    if path in ("", "."):
        return ""
    if "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"not a plain path below the disk's root: {path!r}")
    return path


# Larger than any process may have, so that calls after close get EBADF, not a stranger's file.
# (Of -1 the flush calls think otherwise: they raise ValueError.)
_NO_DESCRIPTOR = 2**31 - 1


class OsFile:
    """A file of the operating system; its descriptor is closed by ``close`` only."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer at the end of the file."""
        data = os.pread(self._descriptor, size, offset)
        # One call may give less than there is; only an empty answer means the end.
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write_at(self, offset: int, data: Bytes) -> None:
        """All of ``data``, or an OSError; a gap before ``offset`` reads as zeros."""
        written = os.pwrite(self._descriptor, data, offset)
        if written != len(data):
            self._write_rest(offset, data, written)

    def _write_rest(self, offset: int, data: Bytes, written: int) -> None:
        # A view of bytes, because len() of a view of wider items does not count bytes.
        view = memoryview(data).cast("B")
        while written < len(view):
            # A call that makes no progress raises: on a full disk ENOSPC, above a limit EFBIG.
            written += os.pwrite(self._descriptor, view[written:], offset + written)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def flush(self) -> None:
        """Return once every byte written so far is on the disk."""
        _flush_data(self._descriptor)

    def close(self) -> None:
        """Give the handle back; no error if that is done already."""
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
        # Directories whose names are known to be durable.  What was there before us, up to the
        # root, is taken to be; what is below may be left from a process that was killed between
        # making a directory and flushing its name, so that is flushed again, once.
        self._named = {existing}

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{checked}" if (checked := checked_path(path)) else self._root

    def _refuse_if_read_only(self, path: str) -> None:
        if self._access == os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open for reading and writing; FileNotFoundError unless it exists or ``create``."""
        if create:
            self._refuse_if_read_only(path)
        flags = self._access | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(self._absolute(path), flags, _FILE_MODE))

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name is there."""
        # Not os.path.exists: it takes an I/O error for "no", and the store would start afresh.
        try:
            os.stat(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        try:
            names = os.listdir(self._absolute(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return listed(names)

    def make_directory(self, path: str) -> None:
        """Make it and its parents; no error if it is there.  Durable when it returns."""
        self.make_directories([path])

    def make_directories(self, paths: Sequence[str]) -> None:
        """Make all of them, as ``make_directory`` does, in less time."""
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
        # Each parent once.
        _call_each(_flush_names, list(dict.fromkeys(map(os.path.dirname, made))))
        self._named.update(made)

    def flush_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Flush each of them, in any order, in less time."""
        _call_each(lambda file: file.flush(), files)
        _call_each(self.flush_directory, directories)

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old`` in one step."""
        self._refuse_if_read_only(old)
        os.replace(self._absolute(old), self._absolute(new))

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone."""
        self._refuse_if_read_only(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._absolute(path))

    def flush_directory(self, path: str) -> None:
        """Return once names made, renamed or removed in it are on the disk."""
        self._refuse_if_read_only(path)
        _flush_names(self._absolute(path))

    def free_bytes(self) -> int:
        """Bytes that can still be written, as far as anybody can tell."""
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def allocate(self, path: str, size: int) -> None:
        """Have a file hold so many bytes of the disk, whatever is in it; ENOSPC if they are not."""
        self._refuse_if_read_only(path)
        descriptor = os.open(
            self._absolute(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE
        )
        try:
            _allocate(descriptor, size)
        finally:
            os.close(descriptor)

    def allocated(self, path: str) -> int:
        """Bytes of the disk that a file holds; 0 if there is no such file."""
        try:
            return os.stat(self._absolute(path)).st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0


# Messages may be private: nothing for others, whatever the umask.
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750

#: What ``st_blocks`` counts in, whatever the file system does.
_BLOCK_BYTES = 512

_FLUSHERS = 8
_FLUSHES_APART_MAX = 16

# fdatasync leaves out the times but not the size; not every system has it.
_flush_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def _call_each(flush: Callable[[T], None], each: Sequence[T]) -> None:
    """Flush each of many; the system puts together what waits at the same time."""
    if len(each) <= _FLUSHES_APART_MAX:
        for one in each:
            flush(one)
        return

    def flush_share(share: Sequence[T]) -> None:
        for one in share:
            flush(one)

    # Written back at once, and what is left for each flush is little.  It promises nothing: what
    # must be durable is flushed nevertheless.
    os.sync()
    with ThreadPoolExecutor(_FLUSHERS, thread_name_prefix="flush_all") as flushers:
        # A share for each thread: handing over one by one takes longer than most flushes.
        shares = [each[first::_FLUSHERS] for first in range(_FLUSHERS)]
        # Taken to the end, so that an error of any of them is raised.
        list(flushers.map(flush_share, shares))


def _write_zeros(descriptor: int, _start: int, size: int) -> None:
    zeros = bytes(1024 * 1024)
    for at in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - at], at)


# Not every system has it.
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
