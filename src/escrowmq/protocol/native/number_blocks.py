"""Rows of numbers as column blocks, with bytes after them, so that no object is made per row.

The columns follow one another in their declared order, each as the little-endian values of all
rows. The caller interprets the rest of the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from escrowmq.protocol.native.row_forms import ColumnType, NativeRow, columns_of, rows_malformed

NumberBlock = npt.NDArray[Any]

_TYPES: dict[ColumnType, np.dtype[Any]] = {
    ColumnType.INT64: np.dtype("<i8"),
    ColumnType.INT32: np.dtype("<i4"),
}


def encode_blocks(kind: type[NativeRow], columns: Sequence[NumberBlock]) -> list[bytes]:
    """Encode columns of numbers as blocks to send one after the other."""
    return [
        held.astype(_TYPES[column.kind]).tobytes()
        for column, held in zip(columns_of(kind), columns, strict=True)
    ]


def decode_blocks(
    kind: type[NativeRow], body: bytes, row_count: int
) -> tuple[dict[str, NumberBlock], int]:
    """Return the columns by name, and the position of the bytes after them."""
    found: dict[str, NumberBlock] = {}
    at = 0
    for column in columns_of(kind):
        dtype = _TYPES[column.kind]
        if row_count < 0 or at + row_count * dtype.itemsize > len(body):
            raise rows_malformed("the blocks are cut off", rows=row_count, bytes=len(body))
        found[column.name] = np.frombuffer(body, dtype=dtype, count=row_count, offset=at)
        at += row_count * dtype.itemsize
    return found, at
