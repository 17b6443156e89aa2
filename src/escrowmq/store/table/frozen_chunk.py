"""The rows of a chunk as a checkpoint writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.disk.rows import STATE_ROW, Rows

if TYPE_CHECKING:
    from escrowmq.store.table.unfiled_ops import OpColumns


class FrozenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Copy of a chunk's rows at one moment; another thread may use it."""

    base: int
    columns: dict[str, Rows]
    #: Log offset of each row's bytes.
    locations: Rows

    def to_rows(self, ops: OpColumns) -> Rows:
        """Return all rows as a file holds them, without op offsets that only the last file has."""
        count = len(self.columns["log_offset"])
        rows = np.zeros(count, dtype=STATE_ROW)
        for name, column in self.columns.items():
            rows[name] = column
        rows["location"] = self.locations
        rows["op_offset"] = -1
        op_offsets = rows["op_offset"]
        firsts, counts, values = ops
        here = (firsts + counts > self.base) & (firsts < self.base + count)
        alone = here & (counts == 1)
        op_offsets[firsts[alone] - self.base] = values[alone]
        for index in np.flatnonzero(here & (counts > 1)).tolist():
            first = int(firsts[index]) - self.base
            op_offsets[max(first, 0) : first + int(counts[index])] = values[index]
        return rows
