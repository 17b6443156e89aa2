"""Room on the disk, looked at before it is used up: a write that fails ends the process.

``store.free_bytes_min`` is kept free.  Below it new messages are refused; below half of it also
decisions, which are small and end what is held; what lies above the last quarter is for checkpoints
and retention.  Of the last quarter, half is a file (``reserve``) that no other program can take: it
is for recovery, and for retention when nothing else is left.  Between two looks at the disk, what
is taken on is counted.  When room comes back, a little more than was missing must be there, so that
the broker does not go on and off.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.store.reserve import Reserve

if TYPE_CHECKING:
    from escrowmq.store.disk import Disk

log = event_log(__name__)

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


#: The parts of ``store.free_bytes_min`` that a file holds, and that even retention leaves free.
RESERVE_PART = 1 / 8
_LAST_PART = 1 / 32
_PARTS = {Level.NO_MESSAGES: 1.0, Level.NO_DECISIONS: 0.5, Level.NOTHING: 0.25}


class Space:
    """What is free, and who may still write."""

    def __init__(self, disk: Disk, free_bytes_min: int) -> None:
        self._disk = disk
        self.reserve = Reserve(disk, int(free_bytes_min * RESERVE_PART))
        #: Bytes that are free when a level begins.
        self._floors = {level: int(free_bytes_min * part) for level, part in _PARTS.items()}
        self._last_bytes = int(free_bytes_min * _LAST_PART)
        #: Those of the reserve count.
        self.free_bytes = disk.free_bytes() + self.reserve.held
        self.level = self._level_now(Level.ALL)

    def look(self, pending_bytes: int = 0) -> Level:
        """See what is free, but for what is taken on and not written yet."""
        self.free_bytes = self._disk.free_bytes() + self.reserve.held - pending_bytes
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

    def missing_bytes(self, size: int, *, from_reserve: bool = False) -> int:
        """How much room is missing for retention to write so much; 0 if there is enough.

        With ``from_reserve``, once the reserve is released; without, beside it.
        """
        self.look()
        floor = self._last_bytes if from_reserve else self._floors[Level.NOTHING]
        is_looked_at = self._floors[Level.NO_MESSAGES] > 0
        return max(size + floor - self.free_bytes, 0) if is_looked_at else 0

    @property
    def wants_reserve(self) -> bool:
        """Whether the reserve is to be made: it is not there, and there is room for it."""
        has_room = self.level <= Level.NO_MESSAGES and self.reserve.may_fit(self.free_bytes)
        return has_room and not self.reserve.is_whole

    def _level_now(self, was: Level) -> Level:
        now = Level.ALL
        for level, floor in self._floors.items():
            if self.free_bytes < (floor * SPARE if level <= was else floor):
                now = level
        return now
