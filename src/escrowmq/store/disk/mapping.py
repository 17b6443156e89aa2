"""Files that are changed in place through memory.

The bytes must be allocated before a file is mapped: if the disk is full, a write to a page without
a place on the disk ends the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Protocol


class MappedBytes(Protocol):
    """The bytes of a file in memory. The system writes them back at any time."""

    @property
    def buffer(self) -> memoryview:
        """The bytes; a change is in the file at once, and on the disk after ``flush``."""

    def flush(self) -> None:
        """Return once every change so far is on the disk."""

    def close(self) -> None:
        """Unmap the file, once no array uses the buffer."""


class OsMapping:
    """A mapped file of the operating system."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mapped = mmap.mmap(descriptor, size)
        self.buffer = memoryview(self._mapped)

    def flush(self) -> None:
        """Return once every change so far is on the disk."""
        self._mapped.flush()

    def close(self) -> None:
        """Unmap the file; an array that still uses the bytes keeps them until it is gone."""
        with contextlib.suppress(BufferError):
            self.buffer.release()
            self._mapped.close()


def map_file(path: str, size: int) -> OsMapping:
    """Map the first ``size`` bytes of a file, which must have them."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return OsMapping(descriptor, size)
    finally:
        # The mapping has a descriptor of its own.
        os.close(descriptor)
