"""A consume queue: the index that makes messages visible, in order.

Entries are 32 bytes each, in files of ``FILE_ENTRIES``. The newest ones are only in memory until a
checkpoint writes them to files; after a crash, recovery replays them from the log. A queue's end
advances only over entries whose records are durable.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.disk.rows import QUEUE_ENTRY, Rows, read_rows, rows_damaged, sealed
from escrowmq.store.queue.queue_files import FILE_ENTRIES, files_of, found_files, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from escrowmq.store.disk.disk import Disk, File
    from escrowmq.store.queue.queue_files import OpenFiles
    from escrowmq.transaction.records import NamedQueue

ENTRY_BYTES = QUEUE_ENTRY.itemsize
#: Queues whose entries a checkpoint writes and flushes together.
FILED_AT_ONCE = 256
SEARCHED_ENTRIES_MAX = 4 * 1024 * 1024
#: Entries that retention reads at a time.
SEARCHED_AT_ONCE = 16_384

_UNPACK = struct.Struct("<qqIiI4x")


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    """One visible message: where it is, and what a pull needs before it reads the message."""

    log_offset: int
    visible_at_ms: int
    size: int
    tags: int
    crc: int


class EntryColumns(msgspec.Struct, frozen=True):
    """Several entries, as one array per field."""

    log_offsets: array[int]
    sizes: array[int]
    tags: array[int]
    crcs: array[int]
    visible_at_ms: array[int]


class Tail(msgspec.Struct, frozen=True):
    """Entries that a checkpoint writes to files: the first ``count`` that are only in memory."""

    queue: ConsumeQueue
    first: int
    count: int


class ConsumeQueue:
    """Entries ``[start, end)`` of one queue."""

    def __init__(self, disk: Disk, files: OpenFiles, named: NamedQueue) -> None:
        self._disk = disk
        self._files = files
        self.topic, self.queue_id = named.topic, named.queue_id
        #: Whether its topic has an incarnation: then no earlier release can have made its files.
        self._is_new = named.incarnation > 0
        #: Prefix of its files' paths.
        self.prefix = files_of(named.id)
        self.start = 0
        self.end = 0
        #: Entries below this are in files.
        self.filed = 0
        # Entries that are not in files yet, one array per field: no object per entry.
        self._log_offsets = array("q")
        self._visible_at_ms = array("q")
        self._sizes = array("I")
        self._tags = array("i")
        self._crcs = array("I")
        #: Files below this entry are deleted; -1 until ``note_files_gone`` is called.
        self._files_start = -1
        #: Whether it may have files, including files that no checkpoint named before a crash.
        self.may_have_files = False

    def _path(self, entry: int) -> str:
        return path_of(self.prefix, entry)

    def open(self, start: int, end: int) -> None:
        """Continue from a checkpoint; raise if the files do not hold the last entry."""
        self.start, self.end, self.filed = start, end, end
        self.may_have_files = True
        if end > start and not self._is_new:
            self.prefix = found_files(self._disk, self.prefix, self.topic, self.queue_id, end - 1)
        if end > start:
            self._read_file(end - 1, end)

    def begin_at(self, start: int) -> None:
        """Begin empty; entries below ``start`` were deleted and are skipped."""
        self.start = self.end = self.filed = start

    def append(self, first: int, entry: QueueEntry) -> None:
        """Add one entry; it is visible when this returns."""
        if self._is_deleted(first, 1):
            return
        self._log_offsets.append(entry.log_offset)
        self._visible_at_ms.append(entry.visible_at_ms)
        self._sizes.append(entry.size)
        self._tags.append(entry.tags)
        self._crcs.append(entry.crc)
        self.end += 1

    def extend(self, first: int, columns: EntryColumns) -> None:
        """Add entries; they are visible when this returns."""
        count = len(columns.sizes)
        deleted = self._is_deleted(first, count)
        news = (
            columns.log_offsets,
            columns.visible_at_ms,
            columns.sizes,
            columns.tags,
            columns.crcs,
        )
        for tail, new in zip(self._columns(), news, strict=True):
            tail.extend(new[deleted:] if deleted else new)
        self.end += count - deleted

    def _is_deleted(self, first: int, count: int) -> int:
        """Return how many of these entries lie below the start of a queue that is rebuilt."""
        if first == self.end:
            return 0
        assert first < self.end, "entries are added in order"
        assert self.start == self.end == self.filed, "only deleted entries are passed over"
        return min(self.end - first, count)

    def entries(self, offset: int, count: int) -> list[QueueEntry]:
        """Return up to ``count`` entries from this offset on."""
        end = min(offset + count, self.end)
        assert offset >= self.start
        found: list[QueueEntry] = []
        while offset < min(end, self.filed):
            stop = min(end, self.filed, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            rows = self._read_file(offset, stop)
            found.extend(QueueEntry(*fields) for fields in _UNPACK.iter_unpack(rows.tobytes()))
            offset = stop
        if offset == end - 1:
            # Most pulls that waited for a message read a single entry.
            at = offset - self.filed
            found.append(
                QueueEntry(
                    self._log_offsets[at],
                    self._visible_at_ms[at],
                    self._sizes[at],
                    self._tags[at],
                    self._crcs[at],
                )
            )
        elif offset < end:
            here = slice(offset - self.filed, end - self.filed)
            found.extend(map(QueueEntry, *(column[here] for column in self._columns())))
        return found

    def rows(self, offset: int, count: int) -> Rows:
        """Return up to ``count`` entries from this offset on as numpy rows, for bulk reads."""
        end = min(offset + count, self.end)
        assert offset >= self.start
        found = [np.zeros(0, dtype=QUEUE_ENTRY)]
        while offset < min(end, self.filed):
            stop = min(end, self.filed, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            found.append(self._read_file(offset, stop))
            offset = stop
        if offset < end:
            found.append(self._tail_rows(offset - self.filed, end - self.filed))
        return np.concatenate(found)

    def _tail_rows(self, first: int, end: int) -> Rows:
        rows = np.zeros(end - first, dtype=QUEUE_ENTRY)
        for name, column in zip(QUEUE_ENTRY.names or (), self._columns(), strict=False):
            rows[name] = column[first:end]
        return rows

    def _columns(self) -> tuple[array[int], ...]:
        return self._log_offsets, self._visible_at_ms, self._sizes, self._tags, self._crcs

    def _read_file(self, offset: int, stop: int) -> Rows:
        return self._read(_opened(self._files.get, self._path(offset)), offset, stop)

    def _read(self, file: File, offset: int, stop: int) -> Rows:
        at = offset % FILE_ENTRIES
        wanted = range(at, at + stop - offset)
        return read_rows("consume_queue_damaged", file, self._path(offset), QUEUE_ENTRY, wanted)

    def offset_at(self, visible_at_ms: int) -> int:
        """Return the first entry visible at or after this time, or ``end`` if there is none."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self.entries(middle, 1)[0].visible_at_ms < visible_at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def at_ms(self, offset: int) -> int:
        """Return when this message became visible; 0 if there is none."""
        is_there = self.start <= offset < self.end
        return self.entries(offset, 1)[0].visible_at_ms if is_there else 0

    def find(
        self, log_offset: int, offset: int, *, limit: int = SEARCHED_ENTRIES_MAX
    ) -> int | None:
        """Return the first entry that points to this log offset, or None.

        The search covers ``limit`` entries from ``offset`` on.
        """
        stop = min(self.end, offset + limit)
        count = 512
        while offset < min(stop, self.filed):
            end = min(
                offset + count, stop, self.filed, offset - offset % FILE_ENTRIES + FILE_ENTRIES
            )
            hits = np.flatnonzero(self._read_file(offset, end)["log_offset"] == log_offset)
            if len(hits):
                return offset + int(hits[0])
            offset = end
            count *= 8
        if offset < self.filed:
            return None
        with contextlib.suppress(ValueError):
            found = self._log_offsets.index(log_offset, offset - self.filed, stop - self.filed)
            return self.filed + found
        return None

    # Files.

    @property
    def unfiled(self) -> int:
        """Number of entries that are not in files yet."""
        return len(self._sizes)

    def tail(self) -> Tail | None:
        """Return the entries that are not in files yet, or None if all are."""
        count = len(self._sizes)
        self.may_have_files = self.may_have_files or count > 0
        return Tail(self, self.filed, count) if count else None

    def write(self, tail: Tail, files: list[File]) -> list[str]:
        """Write these entries and add the open files to ``files``, for the caller to flush.

        Return the directories in which a new file was created.
        """
        grown = []
        # Another thread may add entries meanwhile: taking a slice of an array is atomic.
        data = memoryview(sealed(self._tail_rows(0, tail.count)))
        offset = tail.first
        end = offset + tail.count
        while offset < end:
            stop = min(end, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            path = self._path(offset)
            if not self._disk.exists(path):
                grown.append(path.rpartition("/")[0])
            skip = offset - tail.first
            part = data[skip * ENTRY_BYTES : (stop - tail.first) * ENTRY_BYTES]
            # Not through ``OpenFiles``, which belongs to the store's thread; this may be another.
            files.append(self._disk.open(path, create=True))
            files[-1].write_at(offset % FILE_ENTRIES * ENTRY_BYTES, part)
            offset = stop
        return grown

    def install(self, tail: Tail) -> None:
        """Drop these entries from memory, because the files hold them now."""
        for column in self._columns():
            del column[: tail.count]
        self.filed += tail.count

    def first_after(self, log_offset: int, bound_ms: int) -> int:
        """Return one past the highest entry that points below this log offset.

        Entries that became visible after ``bound_ms`` cannot point there, because a message that is
        old when it becomes visible is copied to the log's end. This may run while another thread
        adds entries, but not during a checkpoint.
        """
        after = offset = self.start
        for rows in self._pieces(offset, self.end):
            end = int(np.searchsorted(rows["visible_at_ms"], bound_ms, side="right"))
            below = np.flatnonzero(rows["log_offset"][:end] < log_offset)
            if len(below):
                after = offset + int(below[-1]) + 1
            if end < len(rows):
                break
            offset += end
        return after

    def _pieces(self, offset: int, end: int) -> Iterator[Rows]:
        """Yield entries ``[offset, end)`` in pieces, and open each file anew.

        ``OpenFiles`` belongs to the store's thread, and this may run in another one.
        """
        filed = min(self.filed, end)
        while offset < filed:
            file_end = min(filed, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            with contextlib.closing(_opened(self._disk.open, self._path(offset))) as file:
                while offset < file_end:
                    stop = min(file_end, offset + SEARCHED_AT_ONCE)
                    yield self._read(file, offset, stop)
                    offset = stop
        if offset < end:
            yield self._tail_rows(offset - filed, end - filed)

    def forget_below(self, start: int) -> None:
        """Hide entries below this offset from readers."""
        self.start = max(self.start, start)

    @property
    def may_have_forgotten_files(self) -> bool:
        """Whether files that hold only forgotten entries may still exist."""
        return self.start - self.start % FILE_ENTRIES > max(self._files_start, 0)

    def forgotten_files(self) -> list[str]:
        """Return the files that hold only forgotten entries, oldest first.

        Delete them in this order: a crash then leaves no gap, and the next call finds the rest.
        """
        base = self.start - self.start % FILE_ENTRIES
        paths = []
        while base > 0 and self._disk.exists(self._path(base - 1)):
            base -= FILE_ENTRIES
            paths.append(self._path(base))
        return paths[::-1]

    def paths(self) -> list[str]:
        """Return the paths of all files that it may have."""
        first = self.start - self.start % FILE_ENTRIES
        entries = range(first, self.end + 1, FILE_ENTRIES)
        return [*self.forgotten_files(), *map(self._path, entries)]

    def note_files_gone(self) -> None:
        """Note that all forgotten files are deleted."""
        self._files_start = self.start - self.start % FILE_ENTRIES


def write_tails(disk: Disk, tails: Sequence[Tail]) -> None:
    """Write and flush the entries of many queues in groups, which is faster than one by one."""
    grown: set[str] = set()
    for first in range(0, len(tails), FILED_AT_ONCE):
        files: list[File] = []
        try:
            for tail in tails[first : first + FILED_AT_ONCE]:
                grown.update(tail.queue.write(tail, files))
            disk.flush_all(files, ())
        finally:
            for file in files:
                file.close()
    disk.flush_all((), sorted(grown))


def _opened(open_file: Callable[[str], File], path: str) -> File:
    try:
        return open_file(path)
    except FileNotFoundError:
        raise rows_damaged("consume_queue_damaged", path, 0, "the file is missing") from None
