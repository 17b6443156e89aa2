"""Checks for room on the disk before it is used up, because a failed write ends the process.

The store keeps ``store.free_bytes_min`` free. Below it, new messages are refused. Below half of it,
decisions are refused too; they are small and end what is held. Down to the last quarter, the room
is for checkpoints and retention. Half of the last quarter is a file (``reserve``) that no other
program can take: it is for recovery, and for retention when nothing else is left. Between two looks
at the disk, the bytes of accepted commands are counted. A level ends only when a little more than
its floor is free, so that the broker does not switch back and forth.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.store.disk.reserve import Reserve

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk

log = event_log(__name__)

#: Bytes that a record takes in the log and in all indexes, besides the message itself.
RECORD_BYTES = 512
#: A level ends once this multiple of its floor is free.
SPARE = 9 / 8


class RoomLevel(IntEnum):
    """What there is room for; each level also refuses what the levels before it refuse."""

    ALL = 0
    NO_MESSAGES = 1
    NO_DECISIONS = 2
    NOTHING = 3


#: Parts of ``store.free_bytes_min``: what the reserve holds, and what even retention leaves free.
RESERVE_PART = 1 / 8
_LAST_PART = 1 / 32
_PARTS = {RoomLevel.NO_MESSAGES: 1.0, RoomLevel.NO_DECISIONS: 0.5, RoomLevel.NOTHING: 0.25}


class Space:
    """Free room on the disk, and what may still be written."""

    def __init__(self, disk: Disk, free_bytes_min: int) -> None:
        self._disk = disk
        self.reserve = Reserve(disk, int(free_bytes_min * RESERVE_PART))
        #: A level begins when fewer bytes than this are free.
        self._floors = {level: int(free_bytes_min * part) for level, part in _PARTS.items()}
        self._last_bytes = int(free_bytes_min * _LAST_PART)
        #: Includes the bytes of the reserve.
        self.free_bytes = disk.free_bytes() + self.reserve.held
        self.level = self._level_now(RoomLevel.ALL)

    def look(self, pending_bytes: int = 0) -> RoomLevel:
        """Measure the free room, minus what is accepted but not written yet; return the level."""
        self.free_bytes = self._disk.free_bytes() + self.reserve.held - pending_bytes
        was, self.level = self.level, self._level_now(self.level)
        if self.level != was:
            event = "disk_full" if self.level > was else "disk_has_room"
            log.warning(event, extra={"free_bytes": self.free_bytes, "level": self.level.name})
        return self.level

    def claim(self, message_bytes: int | None) -> bool:
        """Count a command with this many message bytes (None: no messages); False if room is short.

        On False, the caller calls ``look`` and then ``refuse_if_full``.
        """
        if message_bytes is None:
            self.free_bytes -= RECORD_BYTES
            return (
                self.free_bytes >= self._floors[RoomLevel.NO_DECISIONS]
                and self.level == RoomLevel.ALL
            )
        self.free_bytes -= message_bytes + RECORD_BYTES
        return (
            self.free_bytes >= self._floors[RoomLevel.NO_MESSAGES] and self.level == RoomLevel.ALL
        )

    def refuse_if_full(self, message_bytes: int | None) -> None:
        """Raise if the current level refuses such a command."""
        refused_from = RoomLevel.NO_DECISIONS if message_bytes is None else RoomLevel.NO_MESSAGES
        if self.level >= refused_from:
            raise Unavailable(
                "disk_full",
                "the broker's disk is full: messages can be read, and sent when there is room",
                free_bytes=self.free_bytes,
                free_bytes_min=self._floors[RoomLevel.NO_MESSAGES],
            )

    def look_for_files(self, size: int = 0) -> bool:
        """Measure the free room; return whether it is enough for a checkpoint, as far as known."""
        return (
            self.look() < RoomLevel.NOTHING
            and self.free_bytes - size >= self._floors[RoomLevel.NOTHING]
        )

    def look_for_retention(self, size: int, *, from_reserve: bool = False) -> int:
        """Measure the free room; return how many bytes of it retention lacks to write ``size``.

        With ``from_reserve``, retention may use the room of the reserve; without it, it may not.
        """
        self.look()
        floor = self._last_bytes if from_reserve else self._floors[RoomLevel.NOTHING]
        is_looked_at = self._floors[RoomLevel.NO_MESSAGES] > 0
        return max(size + floor - self.free_bytes, 0) if is_looked_at else 0

    @property
    def wants_reserve(self) -> bool:
        """Whether to make the reserve: it is missing or too small, and there is room for it."""
        has_room = self.level <= RoomLevel.NO_MESSAGES and self.reserve.may_fit(self.free_bytes)
        return has_room and not self.reserve.is_whole

    def _level_now(self, was: RoomLevel) -> RoomLevel:
        now = RoomLevel.ALL
        for level, floor in self._floors.items():
            if self.free_bytes < (floor * SPARE if level <= was else floor):
                now = level
        return now
