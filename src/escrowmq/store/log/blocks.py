"""Gathers messages that are scattered over the log, from cached blocks.

Producers fill queues in turn, so a reader of one of eight queues passes over the messages of the
other seven. Blocks are cached for a moment, so readers of several queues share one read. If the
messages are about the same size, no Python object is made per message.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.log.commit_log import CommitLog

BLOCK_BYTES = 256 * 1024
MARGIN_BYTES = 16 * 1024
"""Extra bytes read with each block: how far its last message may extend past its end."""

BLOCKS_MAX = 64
"""Blocks that are cached: 17 MiB, what two tasks read of the log in a turn of 8 queues."""

Offsets = npt.NDArray[np.int64]


class LogBlocks:
    """Cache of recently read blocks of one log."""

    def __init__(self, log: CommitLog, *, blocks_max: int = BLOCKS_MAX) -> None:
        self._log = log
        self._blocks_max = blocks_max
        #: By log offset, the most recently used block last.
        self._held: dict[int, bytes] = {}

    def gather(self, log_offsets: Offsets, sizes: Offsets) -> memoryview:
        """Return these records, concatenated; none may be larger than ``MARGIN_BYTES``."""
        places = np.cumsum(sizes) - sizes
        width, total = int(sizes.max()), int(sizes.sum())
        data = np.empty(total + width, dtype=np.uint8)
        order = np.argsort(log_offsets, kind="stable")
        if width * len(sizes) <= 2 * total:
            cells = np.empty(len(sizes), dtype=f"V{width}")
            for start, block, rows in self._by_block(log_offsets, sizes, order):
                cells[rows] = _cells(block, width)[log_offsets[rows] - start]
            # Assigned in order: each record overwrites the excess bytes of the cell before it.
            _cells(data, width)[places] = cells
        else:
            into = data.data
            for start, block, rows in self._by_block(log_offsets, sizes, order):
                view = memoryview(block)
                parts = (log_offsets[rows] - start, places[rows], sizes[rows])
                for at, place, size in zip(*(part.tolist() for part in parts), strict=True):
                    into[place : place + size] = view[at : at + size]
        return data.data[:total]

    def _by_block(
        self, log_offsets: Offsets, sizes: Offsets, order: Offsets
    ) -> Iterator[tuple[int, bytes, Offsets]]:
        """Yield each block's start, its bytes, and the indices of its records."""
        offsets = log_offsets[order]
        starts, ends = self._starts(offsets), offsets + sizes[order]
        borders = np.flatnonzero(starts[1:] != starts[:-1]) + 1
        for first, after in pairwise([0, *borders.tolist(), len(order)]):
            start = int(starts[first])
            yield start, self._block(start, int(ends[first:after].max())), order[first:after]

    def forget(self) -> None:
        """Forget all cached blocks, to free their memory."""
        self._held.clear()

    def _starts(self, offsets: Offsets) -> Offsets:
        """Return the start of each offset's block; a new segment begins a new block."""
        segments = np.array([segment.start for segment in self._log.segments])
        begins = segments[np.searchsorted(segments, offsets, side="right") - 1]
        starts: Offsets = np.maximum(offsets - offsets % BLOCK_BYTES, begins)
        return starts

    def _block(self, start: int, needed_end: int) -> bytes:
        block = self._held.pop(start, None)
        if block is None:
            log = self._log
            end = start - start % BLOCK_BYTES + BLOCK_BYTES + MARGIN_BYTES
            block = log.peek(start, end - start)
            if start + len(block) < needed_end:
                # This read raises the error that says what is wrong.
                log.read(start, needed_end - start)
            if start + len(block) < end or log.written < end:
                # The segment ends here, or the rest is not written yet: do not cache this block.
                return block.ljust(end - start, b"\0")
            if len(self._held) >= self._blocks_max:
                del self._held[next(iter(self._held))]
        self._held[start] = block
        return block


def _cells(data: bytes | npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.void]:
    """View with a cell of ``width`` bytes at every position; the cells overlap."""
    return np.ndarray(len(data) - width + 1, dtype=f"V{width}", buffer=data, strides=(1,))
