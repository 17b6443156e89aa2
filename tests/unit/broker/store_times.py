"""A simulated machine and the store time of a broker on it."""

from __future__ import annotations

import msgspec

from escrowmq.broker.write.store_time import StoreTime
from escrowmq.model.clock import ClockReading
from escrowmq.transaction.commands import MoveTime
from escrowmq.transaction.records import (
    TimeMoved,
)

T0 = 1_700_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TEN_YEARS = 3_650 * DAY


class World:
    """A simulated machine and the store time of a broker on it."""

    def __init__(self, *, synchronized: bool = False) -> None:
        self.wall_ms = T0
        self.boot_ms = 5_000
        self.synchronized = synchronized
        self.records: list[TimeMoved] = []
        self.time = StoreTime(T0, self.reading)

    @property
    def reading(self) -> ClockReading:
        return ClockReading(self.wall_ms, self.boot_ms, "boot", self.synchronized)

    @property
    def now_ms(self) -> int:
        return self.time.at(self.boot_ms)

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms

    def jumps(self, ms: int) -> MoveTime | None:
        """Move the wall clock and let the broker notice."""
        self.wall_ms += ms
        return self.looks()

    def looks(self) -> MoveTime | None:
        move = self.time.look(self.reading)
        self.does(move)
        return move

    def does(self, move: MoveTime | None) -> None:
        """Record a move of store time, then apply it."""
        if move is not None:
            self.records.append(
                msgspec.convert(
                    [TimeMoved.__struct_config__.tag, *msgspec.structs.astuple(move)], TimeMoved
                )
            )
            self.time.moved(self.records[-1], self.boot_ms)

    def starts_again(self, *, last_at_ms: int = 0) -> None:
        at_ms = self.now_ms
        moved = self.records[-1] if self.records else None
        self.time = StoreTime(at_ms, self.reading, last_at_ms=last_at_ms or at_ms, moved=moved)

    def deletes_before(self, kept_ms: int) -> int:
        """Return the store time up to which messages are old enough to be deleted."""
        return self.time.deletion_now_ms(kept_ms, self.boot_ms) - kept_ms
