"""A consume queue: the index that makes messages visible, in order.

Entries are 32 bytes and stand in files of ``FILE_ENTRIES``.  The newest ones are only in memory
until a checkpoint files them: after a crash they come from the log again.  A queue's end moves
only over entries whose records are flushed.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.rows import QUEUE_ENTRY, Rows, first_bad, sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.store.disk import Disk, File

DIRECTORY = "consumequeue"
ENTRY_BYTES = QUEUE_ENTRY.itemsize
FILE_ENTRIES = 262_144
OPEN_FILES_MAX = 256
#: Queues that a checkpoint files at a time.
FILED_AT_ONCE = 256
SEARCHED_ENTRIES_MAX = 4 * 1024 * 1024

_UNPACK = struct.Struct("<qqIiI4x")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One visible message: where it is and what a pull must know before reading it."""

    log_offset: int
    visible_at_ms: int
    size: int
    tags: int
    crc: int


class OpenFiles:
    """The queue files that were used last; with ten thousand topics not all can stay open."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """An open handle; it may be closed by the next call."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._disk.open(path)
            if len(self._files) >= OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files[path] = file
        return file

    def forget(self, path: str) -> None:
        """Close it, if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def forget_under(self, directory: str) -> None:
        """Close those in this directory."""
        for path in [path for path in self._files if path.startswith(f"{directory}/")]:
            self.forget(path)

    def close(self) -> None:
        """Close all."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class Columns(msgspec.Struct, frozen=True):
    """Entries, one array per field."""

    log_offsets: array[int]
    sizes: array[int]
    tags: array[int]
    crcs: array[int]
    visible_at_ms: array[int]


class Tail(msgspec.Struct, frozen=True):
    """Entries that a checkpoint files."""

    queue: ConsumeQueue
    first: int
    rows: Rows


class ConsumeQueue:
    """Entries ``[start, end)`` of one queue."""

    def __init__(
        self, disk: Disk, files: OpenFiles, topic: str, queue_id: int, incarnation: int = 0
    ) -> None:
        self._disk = disk
        self._files = files
        self.topic = topic
        self.queue_id = queue_id
        #: Where its files are.
        self.directory = queue_directory(topic, queue_id, incarnation)
        self.start = 0
        self.end = 0
        #: Entries below this are in files.
        self.filed = 0
        #: Whether files may be left of it, also of a process that ended before they counted.
        self.may_have_files = False
        # What is not in files yet, a column per field: nothing is built per entry.
        self._log_offsets = array("q")
        self._visible_at_ms = array("q")
        self._sizes = array("I")
        self._tags = array("i")
        self._crcs = array("I")
        self._has_directory = False

    @property
    def is_new(self) -> bool:
        """Whether its directory may be missing."""
        return not self._has_directory

    def _path(self, entry: int) -> str:
        return f"{self.directory}/{entry - entry % FILE_ENTRIES:020d}"

    def open(self, start: int, end: int) -> None:
        """Continue as of a checkpoint; files that hold less are damaged."""
        self.start, self.end, self.filed = start, end, end
        self.may_have_files = True
        if end > start:
            self._has_directory = True
            self._read_file(end - 1, end)

    def begin_at(self, start: int) -> None:
        """Begin empty; entries below ``start`` were deleted and are passed over."""
        self.start = self.end = self.filed = start

    def append(self, first: int, entry: Entry) -> None:
        """Add one entry; it is visible when this returns."""
        if self._is_deleted(first, 1):
            return
        self._log_offsets.append(entry.log_offset)
        self._visible_at_ms.append(entry.visible_at_ms)
        self._sizes.append(entry.size)
        self._tags.append(entry.tags)
        self._crcs.append(entry.crc)
        self.end += 1

    def extend(self, first: int, columns: Columns) -> None:
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
        """How many of these entries lie below the start of a queue that is made anew."""
        if first == self.end:
            return 0
        assert first < self.end, "entries are added in order"
        assert self.start == self.end == self.filed, "only deleted entries are passed over"
        return min(self.end - first, count)

    def entries(self, offset: int, count: int) -> list[Entry]:
        """Up to ``count`` entries from this offset on."""
        end = min(offset + count, self.end)
        assert offset >= self.start
        found: list[Entry] = []
        while offset < min(end, self.filed):
            stop = min(end, self.filed, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            rows = self._read_file(offset, stop)
            found.extend(Entry(*fields) for fields in _UNPACK.iter_unpack(rows.tobytes()))
            offset = stop
        if offset == end - 1:
            # As most pulls have it that waited for a message.
            at = offset - self.filed
            found.append(
                Entry(
                    self._log_offsets[at],
                    self._visible_at_ms[at],
                    self._sizes[at],
                    self._tags[at],
                    self._crcs[at],
                )
            )
        elif offset < end:
            here = slice(offset - self.filed, end - self.filed)
            found.extend(map(Entry, *(column[here] for column in self._columns())))
        return found

    def rows(self, offset: int, count: int) -> Rows:
        """The same as rows of numpy, for those who want very many."""
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
        path = self._path(offset)
        at = offset % FILE_ENTRIES
        try:
            data = self._files.get(path).read_at(at * ENTRY_BYTES, (stop - offset) * ENTRY_BYTES)
        except FileNotFoundError:
            raise _damaged(path, 0, "the file is missing") from None
        if len(data) < (stop - offset) * ENTRY_BYTES:
            raise _damaged(path, len(data), "the file is too short")
        rows = np.frombuffer(data, dtype=QUEUE_ENTRY)
        bad = first_bad(rows)
        if bad is not None:
            raise _damaged(path, (at + bad) * ENTRY_BYTES, "a check word is wrong")
        return rows

    def offset_at(self, visible_at_ms: int) -> int:
        """The first entry visible at or after this time; ``end`` if there is none."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self.entries(middle, 1)[0].visible_at_ms < visible_at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def find(
        self, log_offset: int, offset: int, *, limit: int = SEARCHED_ENTRIES_MAX
    ) -> int | None:
        """The first entry from this one on that points there, if it is not too far."""
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

    def tail(self) -> Tail | None:
        """What is not in files yet."""
        if not self._sizes:
            return None
        self.may_have_files = True
        return Tail(self, self.filed, self._tail_rows(0, len(self._sizes)))

    def write(self, tail: Tail, files: list[File]) -> list[str]:
        """Write these entries into files that are left open, to be flushed.

        Its directory must be there; returns it if it gained a name.
        """
        grown = []
        rows = tail.rows
        data = memoryview(sealed(rows))
        offset = tail.first
        end = offset + len(rows)
        self._has_directory = True
        while offset < end:
            stop = min(end, offset - offset % FILE_ENTRIES + FILE_ENTRIES)
            path = self._path(offset)
            if not self._disk.exists(path):
                grown.append(self.directory)
            skip = offset - tail.first
            part = data[skip * ENTRY_BYTES : (stop - tail.first) * ENTRY_BYTES]
            # Not through the open files: those belong to the thread that reads.
            files.append(self._disk.open(path, create=True))
            files[-1].write_at(offset % FILE_ENTRIES * ENTRY_BYTES, part)
            offset = stop
        return grown

    def install(self, tail: Tail) -> None:
        """The files hold these entries: drop them from memory."""
        for column in self._columns():
            del column[: len(tail.rows)]
        self.filed += len(tail.rows)

    def first_after(self, log_offset: int, bound_ms: int) -> int:
        """One past the highest entry that points below this log offset.

        Entries visible after ``bound_ms`` cannot: anything older was copied when it became
        visible.
        """
        after = self.start
        stop = self.offset_at(bound_ms + 1)
        offset = self.start
        while offset < stop:
            entries = self.entries(offset, min(4096, stop - offset))
            for at, entry in enumerate(entries, offset + 1):
                if entry.log_offset < log_offset:
                    after = at
            offset += len(entries)
        return after

    def forget_below(self, start: int) -> None:
        """Entries below this are gone for readers."""
        self.start = max(self.start, start)

    def remove_files(self) -> None:
        """Delete the files, oldest first, that hold only forgotten entries."""
        names = self._disk.list(self.directory) if self._has_directory else []
        # Whatever has no number is somebody else's.
        for name in filter(str.isdecimal, names):
            if int(name) + FILE_ENTRIES > self.start:
                break
            self._files.forget(f"{self.directory}/{name}")
            self._disk.remove(f"{self.directory}/{name}")


def queue_directory(topic: str, queue_id: int, incarnation: int) -> str:
    """Where a queue's files are; each incarnation of a topic has directories of its own."""
    name = f"{queue_id}.{incarnation}" if incarnation else str(queue_id)
    return f"{DIRECTORY}/{topic}/{name}"


def remove_queue(disk: Disk, directory: str) -> None:
    """Delete the files of a queue whose topic was deleted; no error if they are gone."""
    for name in disk.list(directory):
        disk.remove(f"{directory}/{name}")
    disk.remove_directory(directory)
    # That of the topic, unless it has other queues.
    disk.remove_directory(directory.rpartition("/")[0])


def write_tails(disk: Disk, tails: Sequence[Tail]) -> None:
    """File the entries of many queues, flushed: some at a time, which is faster than one by one."""
    for first in range(0, len(tails), FILED_AT_ONCE):
        some = tails[first : first + FILED_AT_ONCE]
        disk.make_directories([tail.queue.directory for tail in some if tail.queue.is_new])
        grown: list[str] = []
        files: list[File] = []
        try:
            for tail in some:
                grown += tail.queue.write(tail, files)
            disk.flush_all(files, sorted(set(grown)))
        finally:
            for file in files:
                file.close()


def _damaged(path: str, at: int, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        "consume_queue_damaged",
        f"{what}; `escrowmq store repair` rebuilds it from the log",
        path=path,
        at=at,
    )
