"""Log offsets of the frames that decided requests, until a checkpoint has them in a file."""

from __future__ import annotations

from array import array

import numpy as np

from escrowmq.store.disk.rows import Rows

#: First rows, numbers of rows, op offsets.
OpColumns = tuple[Rows, Rows, Rows]


class UnfiledOps:
    """Decisions that are only in memory."""

    def __init__(self) -> None:
        #: First row of a request -> op offset.
        self._new: dict[int, int] = {}
        #: The same for decisions that a checkpoint is writing.
        self._in_writing: dict[int, int] = {}
        #: The decisions of ``_new``, three numbers each: first row, number of rows, op offset.
        self._listed = array("q")
        #: Requests of one row that were decided in bulk: sorted rows, op offsets.
        self._many: list[tuple[Rows, Rows]] = []
        self._many_rows = 0
        #: How many entries of ``_many`` a checkpoint is writing.
        self._many_in_writing = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._in_writing) + self._many_rows

    def add(self, first: int, count: int, op_offset: int) -> None:
        """Add the decision of a request of ``count`` rows."""
        self._new[first] = op_offset
        self._listed.extend((first, count, op_offset))

    def add_many(self, rows: Rows, op_offsets: Rows) -> None:
        """Add the decisions of requests of one row each."""
        if len(rows):
            order = np.argsort(rows, kind="stable")
            is_one = not op_offsets.strides[0]
            self._many_rows += len(rows)
            self._many.append((rows[order], op_offsets if is_one else op_offsets[order]))

    def of_request(self, first: int) -> int:
        """Return the frame that decided a request, but not in bulk; -1 if none is known here."""
        op_offset = self._new.get(first, -1)
        return self._in_writing.get(first, -1) if op_offset < 0 else op_offset

    def of_many(self, row: int) -> int:
        """Return the frame that decided a request in bulk; -1 if none is known here."""
        for rows, op_offsets in reversed(self._many):
            if rows[0] <= row <= rows[-1]:
                at = int(np.searchsorted(rows, row))
                if rows[at] == row:
                    return int(op_offsets[at])
        return -1

    def freeze(self) -> OpColumns:
        """Return all decisions, for a checkpoint to write.

        They are handed over as a whole: removing them one by one would hold up the event loop.
        """
        assert not self._in_writing, "the last ones were not forgotten"
        firsts, counts, offsets = np.array(self._listed, dtype=np.int64).reshape(-1, 3).T
        rows = np.concatenate([firsts, *(rows for rows, _ in self._many)])
        ones = np.ones(len(rows) - len(firsts), dtype=np.int64)
        offsets = np.concatenate([offsets, *(more for _, more in self._many)])
        self._in_writing, self._new, self._listed = self._new, {}, array("q")
        self._many_in_writing = len(self._many)
        return rows, np.concatenate([counts, ones]), offsets

    def forget_frozen(self) -> None:
        """Forget the frozen decisions, which files hold now."""
        self._in_writing = {}
        self._many_rows -= sum(len(rows) for rows, _ in self._many[: self._many_in_writing])
        del self._many[: self._many_in_writing]
        self._many_in_writing = 0
