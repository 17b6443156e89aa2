"""The port to the file system, and its real adapter.

Everything the store does to files goes through ``Disk``, so that a test can record it, tear it,
lose what was not flushed, and fail it.  Paths are relative to the disk's root and use ``/``.
"""

from __future__ import annotations

from typing import Protocol

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
        """Names in a directory, sorted; empty if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents; no error if it is there.  Durable when it returns."""
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
