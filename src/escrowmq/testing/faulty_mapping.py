"""A mapped file of a ``FaultyDisk``: pages reach the disk when they are flushed.

The real system may write a page back earlier. A power cut during a flush keeps any subset of the
pages, as on a real disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.testing.faulty_disk import FaultyFile

PAGE_BYTES = 4_096


class FaultyMapping:
    """The bytes of one file, in pages."""

    def __init__(self, file: FaultyFile, size: int) -> None:
        self._file = file
        self._bytes = bytearray(file.read_at(0, size).ljust(size, b"\0"))
        self._written = bytes(self._bytes)
        self.buffer = memoryview(self._bytes)

    def flush(self) -> None:
        """Write the pages that changed, and flush the file."""
        now = bytes(self._bytes)
        if self._file.size() < len(now):
            self._file.truncate(len(now))
        for at in range(0, len(now), PAGE_BYTES):
            page = slice(at, at + PAGE_BYTES)
            if now[page] != self._written[page]:
                self._file.write_at(at, now[page])
        self._file.flush()
        self._written = now

    def close(self) -> None:
        """Close the file. Changes that were not flushed are lost."""
        self._file.close()
