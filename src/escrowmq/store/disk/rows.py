"""Fixed-size records on disk, made and checked thousands at a time.

Each record ends in a check word: the sum of its other 32-bit words, each multiplied by its own odd
number, modulo 2**32. Any flipped bit changes it, and numpy computes it for all records at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.disk.disk import File

Rows = npt.NDArray[Any]

#: One row of the state table. Little-endian; 72 bytes.
STATE_ROW = np.dtype(
    [
        ("log_offset", "<i8"),
        ("location", "<i8"),
        ("stored_at_ms", "<i8"),
        ("next_at_ms", "<i8"),
        ("op_offset", "<i8"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("origin", "<u4"),
        ("queue", "<u4"),
        ("tags", "<i4"),
        ("id_hash", "<u4"),
        ("part", "<u2"),
        ("state", "u1"),
        ("checks_sent", "u1"),
        ("check", "<u4"),
    ]
)

#: A survivor: its half offset, then the same fields. 80 bytes.
SURVIVOR_ROW = np.dtype([("half_offset", "<i8"), *STATE_ROW.descr])

#: One entry of a consume queue. Little-endian; 32 bytes.
QUEUE_ENTRY = np.dtype(
    [
        ("log_offset", "<i8"),
        ("visible_at_ms", "<i8"),
        ("size", "<u4"),
        ("tags", "<i4"),
        ("crc", "<u4"),
        ("check", "<u4"),
    ]
)

assert (STATE_ROW.itemsize, SURVIVOR_ROW.itemsize, QUEUE_ENTRY.itemsize) == (72, 80, 32)

_ODD = np.array([2 * (i * 0x9E3779B1 % 2**31) + 1 for i in range(1, 33)], dtype=np.uint32)


def check_words(rows: Rows) -> npt.NDArray[np.uint32]:
    """Return the check word that each of these records should end in."""
    words = rows.view(np.uint32).reshape(len(rows), rows.itemsize // 4)
    body = words[:, :-1]
    # Plus one, because a record of zeros, which a lost write leaves, must not pass.
    products: npt.NDArray[np.uint32] = body @ _ODD[: body.shape[1]]
    return products + np.uint32(1)


def sealed(rows: Rows) -> bytes:
    """Set the check word of each record, and return the bytes of all."""
    rows["check"] = check_words(rows)
    return rows.tobytes()


def first_bad(rows: Rows) -> int | None:
    """Return the index of the first record whose check word is wrong; None if all are right."""
    bad = np.flatnonzero(rows["check"] != check_words(rows))
    return int(bad[0]) if len(bad) else None


def read_rows(code: str, file: File, path: str, kind: np.dtype[np.void], wanted: range) -> Rows:
    """Read these records of a file; raise ``StoreCorrupt`` with this code if some are damaged."""
    data = file.read_at(wanted.start * kind.itemsize, len(wanted) * kind.itemsize)
    if len(data) < len(wanted) * kind.itemsize:
        raise rows_damaged(code, path, len(data), "the file is too short")
    rows = np.frombuffer(data, dtype=kind)
    bad = first_bad(rows)
    if bad is not None:
        raise rows_damaged(code, path, wanted[bad] * kind.itemsize, "a check word is wrong")
    return rows


def rows_damaged(code: str, path: str, at: int, what: str) -> StoreCorrupt:
    """Return the error about a damaged file of records."""
    remedy = "`escrowmq store repair` rebuilds it from the log"
    return StoreCorrupt(code, f"{what}; {remedy}", path=path, at=at)


def windows(data: bytes, kind: np.dtype[np.void], starts: Rows) -> Rows:
    """Return the records of one kind that start at these positions."""
    if not len(starts):
        return np.empty(0, dtype=kind)
    every = sliding_window_view(np.frombuffer(data, dtype=np.uint8), kind.itemsize)
    records: Rows = every[starts].view(kind)
    return records.ravel()
