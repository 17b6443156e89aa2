"""File that reserves disk space for the time when the disk is full.

No other program can take its bytes. A start that finds the disk full releases them to recover.
Retention releases them to retire a segment, which frees more room than it takes. The file is made
again once there is room.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk

log = event_log(__name__)

PATH = "reserve"


class Reserve:
    """The reserve file and its size."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        #: Bytes of the disk that the file should hold.
        self.size = size
        #: Bytes of the disk that it holds.
        self.held = disk.allocated(PATH)
        #: After a failed attempt, the next one waits until more than this is free.
        self._was_too_little = -1

    @property
    def is_whole(self) -> bool:
        """Whether it has its full size."""
        return self.held >= self.size

    def may_fit(self, free_bytes: int) -> bool:
        """Whether to try to make the file with this much free space."""
        return free_bytes > self._was_too_little

    def make(self) -> None:
        """Make the file; if it does not fit, the store goes on without it. Waits for the disk."""
        try:
            self._disk.allocate(PATH, self.size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # A partial file is of no use, and other files need the room.
            self._disk.remove(PATH)
            self._was_too_little = self._disk.free_bytes() + self.size
            log.warning("reserve_not_made", extra={"bytes": self.size})
        self.held = self._disk.allocated(PATH)

    def release(self) -> None:
        """Delete the file to free its room. Waits for the disk."""
        released, self.held = self.held, 0
        self._disk.remove(PATH)
        self._disk.flush_directory("")
        log.warning("reserve_released", extra={"bytes": released})
