"""Corruptions planted in the files of a stopped broker: all checksums are right, the data is wrong.

The broker itself finds wrong checksums. Only an audit can find these.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from escrowmq.store.checkpoint import checkpoint
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.rows import QUEUE_ENTRY, STATE_ROW, Rows, sealed
from escrowmq.store.log.frames import CHECKSUM_AT, encode_records, read_frame
from escrowmq.store.recovery.format import read
from escrowmq.transaction.records import Record

CHANGE_BYTES = 4


class StoppedStore:
    """The store in a data directory that no broker serves."""

    def __init__(self, data: Path) -> None:
        self.root = data / "store"
        self.disk = OsDisk(self.root)
        self.seed = read(self.disk).seed
        self.chunk_rows = read(self.disk).chunk_rows

    def state_row(self, half_offset: int) -> Rows:
        """Return a row of the state table."""
        _, rows, at = self._chunk(half_offset)
        row: Rows = rows[at]
        return row

    def change_state(self, half_offset: int, **fields: int) -> None:
        """Change a row of the state table."""
        path, rows, at = self._chunk(half_offset)
        for name, value in fields.items():
            rows[name][at] = value
        path.write_bytes(sealed(rows))

    def _chunk(self, half_offset: int) -> tuple[Path, Rows, int]:
        base = half_offset - half_offset % self.chunk_rows
        saved = checkpoint.load(self.disk, checkpoint.PATH)
        assert saved is not None
        name = next(chunk.name for chunk in saved.chunks if chunk.base == base)
        path = self.root / "statetable" / name
        return path, np.frombuffer(path.read_bytes(), STATE_ROW).copy(), half_offset - base

    def change_queue(self, topic: str, queue_id: int, change: Callable[[Rows], None]) -> None:
        """Change entries of a queue in their file."""
        saved = checkpoint.load(self.disk, checkpoint.PATH)
        assert saved is not None
        number = next(
            one.id for one in saved.queues if (one.topic, one.queue_id) == (topic, queue_id)
        )
        path = self.root / "consumequeue" / f"{number:08d}.{0:020d}"
        rows = np.frombuffer(path.read_bytes(), QUEUE_ENTRY).copy()
        change(rows)
        path.write_bytes(sealed(rows))

    def change_frame(self, log_offset: int, change: Callable[[Record], Record]) -> None:
        """Change the records of a frame, which must keep their length."""
        path, at = self._segment(log_offset)
        data = bytearray(path.read_bytes())
        frame = read_frame(data, at, log_offset, self.seed)
        assert frame is not None
        tail = encode_records(tuple(change(record) for record in frame.records))
        start, end = at + frame.records_at, at + frame.length
        assert len(tail) == end - start, "the frames after it stay where they are"
        data[start:end] = tail
        checksum = zlib.crc32(tail, zlib.crc32(data[at : at + CHECKSUM_AT], self.seed))
        data[at + CHECKSUM_AT : at + CHECKSUM_AT + CHANGE_BYTES] = checksum.to_bytes(4, "little")
        path.write_bytes(data)

    def damage_frame(self, log_offset: int) -> None:
        """Flip a bit of a frame's records, which makes them unreadable."""
        path, at = self._segment(log_offset)
        data = bytearray(path.read_bytes())
        frame = read_frame(data, at, log_offset, self.seed)
        assert frame is not None
        data[at + frame.records_at] ^= 1
        path.write_bytes(data)

    def _segment(self, log_offset: int) -> tuple[Path, int]:
        starts = sorted(int(name) for name in self.disk.list("commitlog") if name.isdecimal())
        start = max(one for one in starts if one <= log_offset)
        return self.root / "commitlog" / f"{start:020d}", log_offset - start
