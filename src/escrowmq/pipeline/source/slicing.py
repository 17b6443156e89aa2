"""Many slices of one buffer as one Arrow array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types


def slices(
    data: pa.Buffer,
    starts: npt.NDArray[Any],
    ends: npt.NDArray[Any],
    kind: pa.DataType,
    is_missing: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """The bytes ``[start, end)`` of each, in order and without overlap; null where missing."""
    count = len(starts)
    borders = np.empty(2 * count + 1, dtype=np.int32)
    borders[0:-1:2] = starts
    borders[1::2] = ends
    borders[-1] = ends[-1] if count else 0
    # Every other element is the gap between two slices.
    parted = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(borders), data])
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=is_missing)
    return parted.take(wanted)
