"""Which frames of the log parked transactions, and how many messages each.

The topic of parked messages is a view of the log; parkings are so rare in it that they are
remembered, 16 bytes each, in memory and in checkpoints.  Their messages are numbered without a gap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import msgspec

PARKINGS_MAX = 100_000
"""Beyond this the oldest leave the topic; the transactions themselves stay as they are."""


class SavedParkings(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint holds of them."""

    start: int = 0
    frames: list[int] = []
    ends: list[int] = []


class Parkings:
    """In the order of the log."""

    def __init__(self, limit: int = PARKINGS_MAX) -> None:
        self._limit = limit
        #: The number of the first message that is still known.
        self.start = 0
        self._frames = array("q")
        #: The number after the last message of each.
        self._ends = array("q")

    def add(self, frame: int, count: int) -> None:
        """The frame at this log offset parked so many messages; a repeat changes nothing."""
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
        """The number after the last message that was parked below this log offset."""
        known = bisect_left(self._frames, log_offset)
        return self._ends[known - 1] if known else self.start

    def find(self, number: int) -> tuple[int, int]:
        """The frame that parked a message, and which of its messages it is."""
        at = bisect_right(self._ends, number)
        return self._frames[at], number - (self._ends[at - 1] if at else self.start)

    def forget_below(self, log_offset: int) -> None:
        """Let go of those whose frames are deleted."""
        self._forget(bisect_left(self._frames, log_offset))

    def _forget(self, count: int) -> None:
        if count:
            self.start = self._ends[count - 1]
            del self._frames[:count]
            del self._ends[:count]

    def saved(self) -> SavedParkings:
        """For a checkpoint."""
        return SavedParkings(self.start, self._frames.tolist(), self._ends.tolist())

    def load(self, saved: SavedParkings) -> None:
        """From a checkpoint."""
        self.start = saved.start
        self._frames = array("q", saved.frames)
        self._ends = array("q", saved.ends)
