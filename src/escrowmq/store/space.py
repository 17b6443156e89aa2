"""Room on the disk, looked at before it is used up: a write that fails ends the process.

``store.free_bytes_min`` is kept free.  Below it new messages are refused; below half of it also
decisions, which are small and end what is held; the last quarter is for nothing at all, and what
lies between is for checkpoints and retention.  Between two looks at the disk, what is taken on is
counted.  When room comes back, a little more than was missing must be there, so that the broker
does not go on and off.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING

from escrowmq.model.errors import Unavailable

if TYPE_CHECKING:
    from escrowmq.store.disk import Disk

log = logging.getLogger(__name__)

#: What a record takes in the log and in all indexes, beside a message's own bytes.
RECORD_BYTES = 512
#: So much more than its floor must be free before a level is left again.
SPARE = 9 / 8


class Level(IntEnum):
    """For what there is room; what is refused at one level is refused at those after it."""

    ALL = 0
    NO_MESSAGES = 1
    NO_DECISIONS = 2
    NOTHING = 3


_PARTS = {Level.NO_MESSAGES: 1.0, Level.NO_DECISIONS: 0.5, Level.NOTHING: 0.25}


class Space:
    """What is free, and who may still write."""

    def __init__(self, disk: Disk, free_bytes_min: int) -> None:
        self._disk = disk
        #: Bytes that are free when a level begins.
        self._floors = {level: int(free_bytes_min * part) for level, part in _PARTS.items()}
        self.free_bytes = disk.free_bytes()
        self.level = self._level_now(Level.ALL)

    def look(self, pending_bytes: int = 0) -> Level:
        """See what is free, but for what is taken on and not written yet."""
        self.free_bytes = self._disk.free_bytes() - pending_bytes
        was, self.level = self.level, self._level_now(self.level)
        if self.level != was:
            event = "disk_full" if self.level > was else "disk_has_room"
            log.warning(event, extra={"free_bytes": self.free_bytes, "level": self.level.name})
        return self.level

    def takes(self, message_bytes: int | None) -> bool:
        """Take on a command with so many bytes of messages, or None; False if it is time to look.

        Whoever is told to look does, and then asks ``refuse_if_full``.
        """
        if message_bytes is None:
            self.free_bytes -= RECORD_BYTES
            return self.free_bytes >= self._floors[Level.NO_DECISIONS] and self.level == Level.ALL
        self.free_bytes -= message_bytes + RECORD_BYTES
        return self.free_bytes >= self._floors[Level.NO_MESSAGES] and self.level == Level.ALL

    def refuse_if_full(self, message_bytes: int | None) -> None:
        """Refuse such a command at this level."""
        refused_from = Level.NO_DECISIONS if message_bytes is None else Level.NO_MESSAGES
        if self.level >= refused_from:
            raise Unavailable(
                "disk_full",
                "the broker's disk is full: messages can be read, and sent when there is room",
                free_bytes=self.free_bytes,
                free_bytes_min=self._floors[Level.NO_MESSAGES],
            )

    def allows_files(self, size: int = 0) -> bool:
        """Whether there is room for a checkpoint, as far as anybody can tell before it is made."""
        return self.look() < Level.NOTHING and self.free_bytes - size >= self._floors[Level.NOTHING]

    def _level_now(self, was: Level) -> Level:
        now = Level.ALL
        for level, floor in self._floors.items():
            if self.free_bytes < (floor * SPARE if level <= was else floor):
                now = level
        return now
