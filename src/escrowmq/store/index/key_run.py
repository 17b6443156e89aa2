"""A run of the key index: a file of sorted entries that never changes once it has its name.

An entry is the hash of a key and the log offset of a record that carries it. Layout of
``NUMBER.run``, format version 1, all numbers little-endian:

    0      8   magic "EMQKEYS" and a zero byte
    8      4   format version
    12     8   number of entries
    20     8   lowest log offset
    28     8   highest log offset
    36         zeros
    4092   4   CRC-32 of the blocks, followed by bytes 0 to 4091
    4096       blocks of 1,024 entries, only the last may have fewer: n hashes of 4 bytes each,
               then their n log offsets of 8 bytes each

Entries are sorted by hash, then by offset, without duplicates. A block is three pages; a search
that finds nothing reads only the first. Opening a run verifies the checksum.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.disk import Disk, File, on_error

FORMAT_VERSION = 1
MAGIC = b"EMQKEYS\0"
HEADER_BYTES = 4_096
BLOCK_ENTRIES = 1_024
ENTRY_BYTES = 12
BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_BYTES
#: Blocks handled at a time when a run is written, merged or verified. This bounds memory and how
#: long other threads wait for the interpreter.
PIECE_BLOCKS = 64

_FIELDS = struct.Struct("<8sIQQQ")
_CHECKSUM = struct.Struct("<I")
_BLOCK_WORDS = BLOCK_BYTES // 4

Hashes = NDArray[np.uint32]
Offsets = NDArray[np.uint64]
Entries = tuple[Hashes, Offsets]


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Entries in memory, in the order in which they were added."""

    hashes: array[int]
    offsets: array[int]

    def find(self, wanted: int, low: int, high: int, limit: int) -> list[int]:
        """Return the newest ``limit`` offsets of a hash in ``[low, high)``, ascending."""
        hashes, offsets = self._entries()
        offsets = offsets[hashes == wanted]
        offsets = np.unique(offsets[(offsets >= low) & (offsets < high)])
        newest: list[int] = offsets[-limit:].tolist()
        return newest

    def sorted_pieces(self) -> Iterator[Entries]:
        """Yield all entries sorted and without duplicates, as a run stores them."""
        hashes, offsets = _sorted(*self._entries())
        size = PIECE_BLOCKS * BLOCK_ENTRIES
        for start in range(0, len(hashes), size):
            yield hashes[start : start + size], offsets[start : start + size]

    def _entries(self) -> Entries:
        # These are views, not copies: an array cannot grow while a view of it exists.
        return np.frombuffer(self.hashes, np.uint32), np.frombuffer(self.offsets, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class KeyRun:
    """An open run."""

    path: str
    count: int
    lowest: int
    highest: int
    _file: File
    #: The first hash of each block.
    _fence: array[int]

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.rpartition("/")[2]

    def find(self, wanted: int, low: int, high: int, limit: int) -> list[int]:
        """Return the newest ``limit`` offsets of a hash in ``[low, high)``, newest first."""
        last = bisect_right(self._fence, wanted) - 1
        if last < 0:
            return []
        first = max(bisect_left(self._fence, wanted) - 1, 0)
        # Each candidate block after the first one begins with this hash, and the hash's offsets
        # ascend from block to block.
        last = first + bisect_left(range(first + 1, last + 1), high, key=self._first_offset)
        found: list[int] = []
        for block in range(last, first - 1, -1):
            offsets = self._offsets_in(block, wanted)
            found += [offset for offset in reversed(offsets) if low <= offset < high]
            if len(found) >= limit or not offsets or offsets[0] < low:
                break
        return found[:limit]

    def piece(self, number: int) -> Entries:
        """Return the entries of piece ``number`` (``PIECE_BLOCKS`` blocks); empty past the end."""
        end = HEADER_BYTES + self.count * ENTRY_BYTES
        start = min(HEADER_BYTES + number * PIECE_BLOCKS * BLOCK_BYTES, end)
        return _unpacked(self._read(start, min(PIECE_BLOCKS * BLOCK_BYTES, end - start)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _offsets_in(self, block: int, wanted: int) -> list[int]:
        position = HEADER_BYTES + block * BLOCK_BYTES
        size = min(BLOCK_ENTRIES, self.count - block * BLOCK_ENTRIES)
        hashes = np.frombuffer(self._read(position, 4 * size), "<u4")
        # np.uint32 matters: for a Python int, numpy would first widen the hashes to 64 bits.
        start = int(hashes.searchsorted(np.uint32(wanted)))
        if start == size or hashes[start] != wanted:
            return []
        end = int(hashes.searchsorted(np.uint32(wanted), "right"))
        data = self._read(position + 4 * size + 8 * start, 8 * (end - start))
        offsets: list[int] = np.frombuffer(data, "<u8").tolist()
        return offsets

    def _first_offset(self, block: int) -> int:
        size = min(BLOCK_ENTRIES, self.count - block * BLOCK_ENTRIES)
        data = self._read(HEADER_BYTES + block * BLOCK_BYTES + 4 * size, 8)
        return int.from_bytes(data, "little")

    def _read(self, position: int, size: int) -> bytes:
        data = self._file.read_at(position, size)
        if len(data) != size:
            raise damaged(self.path, "it has become shorter")
        return data


def open_run(disk: Disk, path: str) -> KeyRun:
    """Open and verify a run; raise StoreCorrupt("key_index_damaged") if it is damaged."""
    file = disk.open(path)
    with on_error(file.close):
        return _verified(file, path)


def _verified(file: File, path: str) -> KeyRun:
    header = file.read_at(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise damaged(path, "the file does not start with the header of a run")
    _, version, count, lowest, highest = _FIELDS.unpack_from(header)
    fence, checksum = array("I"), 0
    for position in range(HEADER_BYTES, file.size(), PIECE_BLOCKS * BLOCK_BYTES):
        data = file.read_at(position, PIECE_BLOCKS * BLOCK_BYTES)
        checksum = zlib.crc32(data, checksum)
        fence.frombytes(_first_hashes(data).tobytes())
    checksum = zlib.crc32(header[: -_CHECKSUM.size], checksum)
    if header[-_CHECKSUM.size :] != _CHECKSUM.pack(checksum):
        raise damaged(path, "its checksum is wrong")
    if version != FORMAT_VERSION:
        raise StoreUnusable(
            "key_index_version_unknown",
            "use the release that wrote it, or a later one",
            path=path,
            version=version,
            version_known=FORMAT_VERSION,
        )
    return KeyRun(path, count, lowest, highest, file, fence)


def write_run(disk: Disk, path: str, pieces: Iterable[Entries]) -> KeyRun:
    """Write sorted pieces as a run; it is durable under its name on return."""
    temporary = f"{path}.tmp"
    # A failed attempt may have left this file; every byte is written and flushed again.
    file = disk.open(temporary, create=True)
    with on_error(file.close):
        run = _write(file, path, pieces)
        file.flush()
        disk.rename(temporary, path)
        disk.flush_directory(path.rpartition("/")[0])
    return run


def _write(file: File, path: str, pieces: Iterable[Entries]) -> KeyRun:
    position, checksum, fence = HEADER_BYTES, 0, array("I")
    lowest, highest = 2**64, -1
    for hashes, offsets in _in_whole_blocks(pieces):
        data = _packed(hashes, offsets)
        file.write_at(position, data)
        position += len(data)
        checksum = zlib.crc32(data, checksum)
        fence.frombytes(_first_hashes(data).tobytes())
        lowest, highest = min(lowest, int(offsets.min())), max(highest, int(offsets.max()))
    count = (position - HEADER_BYTES) // ENTRY_BYTES
    assert count, "a run without entries has no lowest and highest offset"
    fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, count, lowest, highest)
    header = fields.ljust(HEADER_BYTES - _CHECKSUM.size, b"\0")
    file.write_at(0, header + _CHECKSUM.pack(zlib.crc32(header, checksum)))
    return KeyRun(path, count, lowest, highest, file, fence)


def merged(runs: Sequence[KeyRun], low: int) -> Iterator[Entries]:
    """Yield the entries of all runs from log offset ``low`` on, sorted; a few pieces in memory."""
    cursors = [_Cursor(run) for run in runs]
    while cursors:
        # Entries still on disk sort after the in-memory entries of the same run, so everything up
        # to the smallest in-memory end is complete.
        bound = min(cursor.end() for cursor in cursors)
        parts = [cursor.take(bound) for cursor in cursors]
        hashes = np.concatenate([hashes for hashes, _ in parts])
        offsets = np.concatenate([offsets for _, offsets in parts])
        kept = offsets >= low
        yield _sorted(hashes[kept], offsets[kept])
        cursors = [cursor for cursor in cursors if cursor.has_entries()]


class _Cursor:
    """A merge's position in one run."""

    def __init__(self, run: KeyRun) -> None:
        self._run = run
        self._number = 0
        self._hashes, self._offsets = run.piece(0)

    def end(self) -> tuple[int, int]:
        return int(self._hashes[-1]), int(self._offsets[-1])

    def take(self, bound: tuple[int, int]) -> Entries:
        """Take everything in memory up to and including ``bound``; load the next piece if empty."""
        left = int(self._hashes.searchsorted(np.uint32(bound[0])))
        right = int(self._hashes.searchsorted(np.uint32(bound[0]), "right"))
        end = left + int(self._offsets[left:right].searchsorted(np.uint64(bound[1]), "right"))
        taken = self._hashes[:end], self._offsets[:end]
        self._hashes, self._offsets = self._hashes[end:], self._offsets[end:]
        if not self.has_entries():
            self._number += 1
            self._hashes, self._offsets = self._run.piece(self._number)
        return taken

    def has_entries(self) -> bool:
        return len(self._hashes) > 0


def damaged(path: str, message: str) -> StoreCorrupt:
    """The error for a damaged run."""
    return StoreCorrupt("key_index_damaged", message, path=path)


def _sorted(hashes: Hashes, offsets: Offsets) -> Entries:
    order = np.lexsort((offsets, hashes))
    hashes, offsets = hashes[order], offsets[order]
    # A message may carry the same key twice.
    first = np.ones(len(hashes), np.bool_)
    first[1:] = (hashes[1:] != hashes[:-1]) | (offsets[1:] != offsets[:-1])
    return hashes[first], offsets[first]


def _in_whole_blocks(pieces: Iterable[Entries]) -> Iterator[Entries]:
    """Yield the same entries in non-empty pieces; only the last one ends inside a block."""
    hashes, offsets = np.empty(0, np.uint32), np.empty(0, np.uint64)
    for more_hashes, more_offsets in pieces:
        hashes = np.concatenate((hashes, more_hashes))
        offsets = np.concatenate((offsets, more_offsets))
        end = len(hashes) - len(hashes) % BLOCK_ENTRIES
        if end:
            yield hashes[:end], offsets[:end]
            hashes, offsets = hashes[end:], offsets[end:]
    if len(hashes):
        yield hashes, offsets


def _packed(hashes: Hashes, offsets: Offsets) -> bytes:
    whole = len(hashes) - len(hashes) % BLOCK_ENTRIES
    blocks = np.empty((whole // BLOCK_ENTRIES, _BLOCK_WORDS), "<u4")
    blocks[:, :BLOCK_ENTRIES] = hashes[:whole].reshape(-1, BLOCK_ENTRIES)
    words = offsets.astype("<u8").view("<u4")
    blocks[:, BLOCK_ENTRIES:] = words[: 2 * whole].reshape(-1, 2 * BLOCK_ENTRIES)
    return b"".join(
        (blocks.tobytes(), hashes[whole:].astype("<u4").tobytes(), words[2 * whole :].tobytes())
    )


def _unpacked(data: bytes) -> Entries:
    block_count, rest = divmod(len(data), BLOCK_BYTES)
    words = np.frombuffer(data, "<u4")
    blocks = words[: block_count * _BLOCK_WORDS].reshape(-1, _BLOCK_WORDS)
    words = words[block_count * _BLOCK_WORDS :]
    rest //= ENTRY_BYTES
    hashes = np.concatenate((blocks[:, :BLOCK_ENTRIES].ravel(), words[:rest]))
    offset_words = np.concatenate((blocks[:, BLOCK_ENTRIES:].ravel(), words[rest:]))
    return hashes, offset_words.view("<u8")


def _first_hashes(data: bytes) -> Hashes:
    """The first hash of each block, in this machine's byte order."""
    # A damaged file may end anywhere, so cut to whole 4-byte words.
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], "<u4")[::_BLOCK_WORDS].astype(np.uint32)
