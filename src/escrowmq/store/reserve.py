"""A file that keeps room on the disk for the day when there is no other.

It holds bytes that no other program can take.  A start that finds the disk full gives them back to
recover; retention gives them back to retire a segment, which makes more room than it took.  The
file is made again once there is room.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.store.disk import Disk

log = event_log(__name__)

PATH = "reserve"


class Reserve:
    """The file, and how much it holds."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        #: Bytes that it should hold.
        self.size = size
        #: Bytes of the disk that it holds.
        self.held = disk.allocated(PATH)
        #: What was free when it did not fit, though it should have: it is not tried again for less.
        self._was_too_little = -1

    @property
    def is_whole(self) -> bool:
        """Whether it holds all that it should."""
        return self.held >= self.size

    def may_fit(self, free_bytes: int) -> bool:
        """Whether it is worth trying to make it, with so much free."""
        return free_bytes > self._was_too_little

    def make(self) -> None:
        """Take the room; without it the store goes on.  Waits for the disk."""
        try:
            self._disk.allocate(PATH, self.size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # A part of it would be no use, and the room is wanted elsewhere.
            self._disk.remove(PATH)
            self._was_too_little = self._disk.free_bytes() + self.size
            log.warning("reserve_not_made", extra={"bytes": self.size})
        self.held = self._disk.allocated(PATH)

    def release(self) -> None:
        """Give the room back.  Waits for the disk."""
        released, self.held = self.held, 0
        self._disk.remove(PATH)
        self._disk.flush_directory("")
        log.warning("reserve_released", extra={"bytes": released})
