"""Store time: the clock for due times, delays, retries, ages and retention.

It advances with the boot clock and never goes back. It slews toward the wall clock while the two
are less than a minute apart. It follows a wall clock that is further ahead only if the kernel, two
client hosts or a person vouches for that clock. The module is pure: readings in, store time out. A
move that must be on record before it happens comes out as a command.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec.structs import replace

from escrowmq.model.clock import GAP_MS, ClockReading
from escrowmq.transaction.commands import MoveTime
from escrowmq.transaction.records import (
    AGREES,
    BEHIND,
    BOOT_CLOCK,
    CLIENTS,
    KERNEL,
    PERSON,
    TimeMoved,
)

DELETION_WAITS_MS = 3_600_000
"""Nothing is deleted by age for this long, by the boot clock, after store time has moved."""

SLEW = 10
"""While it slews, store time is faster or slower than the boot clock by one part in this many."""

CLOSE_MS = 10
"""A smaller gap between store time and wall time starts no slewing."""

WITNESS_MS = 60_000
"""A client's clock that is closer than this to the wall clock vouches for it."""

WITNESSES_MIN = 2


class StoreClock(Protocol):
    """A source of store time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class ClockGap(StrEnum):
    """Relation of wall time to store time."""

    NONE = "none"
    #: The wall clock is ahead, and no source vouches for it.
    AHEAD = "ahead"
    #: The wall clock is behind store time, which never goes back.
    BEHIND = "behind"


class StoreTime:
    """The time of one store. Use it from one thread only."""

    def __init__(
        self,
        at_ms: int,
        reading: ClockReading,
        *,
        last_at_ms: int = 0,
        moved: TimeMoved | None = None,
    ) -> None:
        """``at_ms`` is store time at the reading; ``last_at_ms`` the last one before the start."""
        self._go_on_from(at_ms, reading.boot_ms)
        self.gap = ClockGap.NONE
        #: Wall time minus store time, at the last ``look``.
        self.gap_ms = 0
        self.is_synchronized = reading.is_synchronized
        #: While the wall clock is behind: since which store time, and by how much.
        self._behind_since_ms = 0
        self._behind_ms = 0
        #: The person who has confirmed that store time is right and the wall clock is behind.
        self._known_by = ""
        self._deletion_from_boot_ms = reading.boot_ms
        self._witnesses: set[bytes] = set()
        self._open_gap_ms = 0
        #: The last store time before the start if the broker was away for an hour or more, else 0.
        #: Such an absence goes on record as a move, so deletion waits after it, too.
        is_long = 0 < last_at_ms <= at_ms - DELETION_WAITS_MS
        self._away_from_ms = last_at_ms if is_long else 0
        if moved is not None:
            self._remember(moved, at_ms, reading.boot_ms)

    def _remember(self, moved: TimeMoved, at_ms: int, boot_ms: int) -> None:
        if moved.why == BEHIND:
            self._begin_behind(moved)
        elif at_ms - max(moved.from_ms, moved.to_ms) < DELETION_WAITS_MS:
            # The hour starts again; how much of it had passed does not matter.
            self._deletion_from_boot_ms = boot_ms + DELETION_WAITS_MS

    # Reading the time.

    def at(self, boot_ms: int) -> int:
        """Return store time for a reading of the boot clock."""
        if boot_ms >= self.slews_until_boot_ms:
            return boot_ms + self.offset_ms
        return self._base_ms + (boot_ms - self._base_boot_ms) * self._parts // SLEW

    def deletion_now_ms(self, kept_ms: int, boot_ms: int) -> int:
        """Return the time from which ages are measured for ``kept_ms``; 0 if nothing may go by age.

        While the wall clock is behind, a message stored before that was noticed may be younger than
        it looks, by the whole gap. It is kept longer by the gap, but at most until ``kept_ms`` have
        passed since the notice.
        """
        if self.deletion_waits(boot_ms):
            return 0
        now_ms = self.at(boot_ms)
        if self.gap is ClockGap.BEHIND and now_ms - self._behind_since_ms < kept_ms:
            return max(now_ms - self._behind_ms, 0)
        return now_ms

    def deletion_waits(self, boot_ms: int) -> str:
        """Return why nothing is deleted by age now; empty if it is."""
        if self.gap is ClockGap.AHEAD:
            return "the wall clock is ahead, and no second source confirms it"
        if self.gap_ms <= -GAP_MS and not self._is_noted:
            return "the wall clock went back, and the log does not record it yet"
        if self.deletion_waits_ms(boot_ms):
            return "store time moved less than an hour ago"
        return ""

    def deletion_waits_ms(self, boot_ms: int) -> int:
        """Return for how long nothing is deleted because store time moved."""
        return max(self._deletion_from_boot_ms - boot_ms, 0)

    @property
    def is_doubtful(self) -> bool:
        """Whether a person should look at the clock."""
        return self.gap is ClockGap.AHEAD or (self.gap is ClockGap.BEHIND and not self._known_by)

    @property
    def wants_witnesses(self) -> bool:
        """Whether the clocks of client hosts would help."""
        return self.gap is ClockGap.AHEAD

    # Changing the time.

    def look(self, reading: ClockReading) -> MoveTime | None:
        """Compare with the wall clock; return the move that must be on record first, if any."""
        self.is_synchronized = reading.is_synchronized
        now_ms = self.at(reading.boot_ms)
        self.gap_ms = reading.wall_ms - now_ms
        if self._away_from_ms:
            return _move(self._away_from_ms, now_ms, BOOT_CLOCK, reading)
        if abs(self.gap_ms) < GAP_MS:
            return self._approach(now_ms, reading)
        self._go_on_from(now_ms, reading.boot_ms)
        if self.gap_ms > 0:
            return self._judge(now_ms, reading)
        return None if self._is_noted else self._note_behind(now_ms, reading)

    @property
    def _is_noted(self) -> bool:
        """Whether it is on record that the wall clock is behind by about this gap."""
        return self.gap is ClockGap.BEHIND and abs(self.gap_ms + self._behind_ms) < GAP_MS

    def _note_behind(self, now_ms: int, reading: ClockReading, by: str = "") -> MoveTime:
        since_ms = now_ms
        if self._behind_ms and -self.gap_ms < self._behind_ms + GAP_MS:
            # A smaller gap than before, as after the machine was off, is not a new doubt.
            since_ms, by = self._behind_since_ms, by or self._known_by
        return replace(_move(now_ms, reading.wall_ms, BEHIND, reading), by=by, since_ms=since_ms)

    def _approach(self, now_ms: int, reading: ClockReading) -> MoveTime | None:
        is_slewing = reading.boot_ms < self.slews_until_boot_ms
        if is_slewing or abs(self.gap_ms) >= CLOSE_MS:
            self._go_on_from(now_ms, reading.boot_ms, slew_ms=self.gap_ms)
        if self._behind_ms:
            return _move(now_ms, reading.wall_ms, AGREES, reading)
        self.gap = ClockGap.NONE
        return None

    def _judge(self, now_ms: int, reading: ClockReading) -> MoveTime | None:
        if self.gap is not ClockGap.AHEAD or abs(self.gap_ms - self._open_gap_ms) >= GAP_MS:
            # It is another gap, and earlier witnesses have not vouched for this one.
            self._witnesses.clear()
            self._open_gap_ms = self.gap_ms
        self.gap = ClockGap.AHEAD
        why = ""
        if reading.is_synchronized:
            why = KERNEL
        elif len(self._witnesses) >= WITNESSES_MIN:
            why = CLIENTS
        return _move(now_ms, reading.wall_ms, why, reading) if why else None

    def _go_on_from(self, now_ms: int, boot_ms: int, *, slew_ms: int = 0) -> None:
        self._base_ms, self._base_boot_ms = now_ms, boot_ms
        self._parts = SLEW + 1 if slew_ms > 0 else SLEW - 1
        #: Store time slews until then; from then on it is the boot clock plus ``offset_ms``.
        self.slews_until_boot_ms = boot_ms + abs(slew_ms) * SLEW
        self.offset_ms = now_ms - boot_ms + slew_ms

    def witness(self, host: bytes, born_at_ms: int, wall_ms: int) -> None:
        """Take a client host's clock into account; the caller must leave out the broker's host."""
        if self.gap is ClockGap.AHEAD and abs(born_at_ms - wall_ms) < WITNESS_MS:
            self._witnesses.add(host)

    @property
    def witnesses(self) -> int:
        """Number of client hosts that vouch for a wall clock that is ahead."""
        return len(self._witnesses)

    def confirm(self, reading: ClockReading, by: str) -> MoveTime | None:
        """Return the move to record if a person vouches for the wall clock; None without a gap."""
        self.look(reading)
        if abs(self.gap_ms) < GAP_MS:
            return None
        now_ms = self.at(reading.boot_ms)
        if self.gap_ms > 0:
            return replace(_move(now_ms, reading.wall_ms, PERSON, reading), by=by)
        return self._note_behind(now_ms, reading, by)

    def moved(self, record: TimeMoved, boot_ms: int) -> None:
        """Apply a move that is on record."""
        self._away_from_ms = 0
        if record.why == BEHIND:
            self._begin_behind(record)
            return
        self._deletion_from_boot_ms = boot_ms + DELETION_WAITS_MS
        self.gap = ClockGap.NONE
        self._behind_ms = 0
        self._witnesses.clear()
        if record.why != AGREES:
            passed_ms = boot_ms - record.boot_ms
            self._go_on_from(max(self.at(boot_ms), record.to_ms + passed_ms), boot_ms)
            self.gap_ms = 0

    def _begin_behind(self, record: TimeMoved) -> None:
        self._behind_since_ms = record.since_ms
        self._behind_ms = record.from_ms - record.to_ms
        self.gap = ClockGap.BEHIND
        self._known_by = record.by


def _move(from_ms: int, to_ms: int, why: str, reading: ClockReading) -> MoveTime:
    return MoveTime(
        from_ms=from_ms, to_ms=to_ms, why=why, boot_ms=reading.boot_ms, boot_id=reading.boot_id
    )
