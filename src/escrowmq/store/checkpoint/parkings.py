"""Index of the frames that parked transactions, and how many messages each frame parked.

The topic of parked messages is a view of the log. Parkings are rare, so memory and checkpoints hold
an entry of 16 bytes for each. Their messages are numbered without gaps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import msgspec

PARKINGS_MAX = 100_000
"""Beyond this, the oldest parkings leave the topic; the transactions stay as they are."""


class SavedParkings(msgspec.Struct, frozen=True, array_like=True):
    """Parkings as a checkpoint stores them."""

    start: int = 0
    frames: list[int] = []
    ends: list[int] = []


class Parkings:
    """Parkings in log order."""

    def __init__(self, limit: int = PARKINGS_MAX) -> None:
        self._limit = limit
        #: The number of the first message that is still known.
        self.start = 0
        self._frames = array("q")
        #: The number after the last message of each frame.
        self._ends = array("q")

    def add(self, frame: int, count: int) -> None:
        """Add the frame at this log offset, which parked ``count`` messages; ignore a repeat."""
        if self._frames and frame <= self._frames[-1]:
            return
        self._ends.append(self.end + count)
        self._frames.append(frame)
        if len(self._frames) > self._limit:
            self._forget(1)

    @property
    def end(self) -> int:
        """The number of the next message."""
        return self._ends[-1] if self._ends else self.start

    def end_below(self, log_offset: int) -> int:
        """Return the number after the last message that was parked below this log offset."""
        known = bisect_left(self._frames, log_offset)
        return self._ends[known - 1] if known else self.start

    def find(self, number: int) -> tuple[int, int]:
        """Return the frame that parked a message, and the message's index in the frame."""
        at = bisect_right(self._ends, number)
        return self._frames[at], number - (self._ends[at - 1] if at else self.start)

    def forget_below(self, log_offset: int) -> None:
        """Forget the parked transactions whose frames, below this offset, retention has deleted."""
        self._forget(bisect_left(self._frames, log_offset))

    def _forget(self, count: int) -> None:
        if count:
            self.start = self._ends[count - 1]
            del self._frames[:count]
            del self._ends[:count]

    def saved(self) -> SavedParkings:
        """Return the parkings for a checkpoint."""
        return SavedParkings(self.start, self._frames.tolist(), self._ends.tolist())

    def load(self, saved: SavedParkings) -> None:
        """Take the parkings from a checkpoint."""
        self.start = saved.start
        self._frames = array("q", saved.frames)
        self._ends = array("q", saved.ends)
