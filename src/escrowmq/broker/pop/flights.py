"""Messages in flight: delivered to a consumer group by pop and not yet acknowledged.

Only memory holds this: after a restart, whatever is not acknowledged is visible again. Time comes
in as an argument, and nothing here awaits or reads a clock. A message costs about 20 bytes, in
columns, from its first delivery until everything before it in its queue is acknowledged too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from escrowmq.transaction.records import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.transaction.memory.pops import PopPosition

    Column = np.ndarray[Any, np.dtype[Any]]

AHEAD_MAX = 131_072
"""How far deliveries may be ahead of the oldest unacknowledged message of their queue. It is half
of what an acknowledged position allows, because the oldest ones may still wait for the disk."""

ATTEMPTS_MAX = 65_535
_ROWS_MIN = 16
_LOOKED_AT = 256

Run = tuple[int, int]
"""The first queue offset, and how many."""


class QueueFlights:
    """Deliveries of one queue to one group since the broker's start.

    Every message below ``next`` is done, or it was delivered and not acknowledged. The latter is
    in flight until its time, and may be delivered again from then on.
    """

    def __init__(self, position: PopPosition) -> None:
        #: What the group had acknowledged before; this may include messages from ``next`` on.
        self._position = position
        #: Everything below is done.
        self.base = position.prefix
        #: The next message that was not delivered since the start.
        self.next = position.prefix
        #: Messages that are delivered and not done.
        self.count = 0
        #: Runs that no consumer wants and that are not yet recorded as acknowledged.
        self.skipped: list[Run] = []
        #: Attempt id of the request that last got messages from this queue.
        self.attempt_id = ""
        #: Whether that request asked for messages in order.
        self.is_fifo = False
        #: No unacknowledged message is due before this time.
        self.due_from_ms = NEVER
        #: By offset, from ``base`` on: when it is visible again, ``NEVER`` if it is done; the time
        #: of its last delivery; the number of deliveries.
        self._visible_at = np.full(_ROWS_MIN, NEVER, dtype=np.int64)
        self._popped_at = np.zeros(_ROWS_MIN, dtype=np.int64)
        self._attempts = np.zeros(_ROWS_MIN, dtype=np.uint16)
        #: The row of ``base``.
        self._first = 0

    # Questions.

    @property
    def room(self) -> int:
        """How many offsets the queue may still run ahead."""
        return max(self.base + AHEAD_MAX - self.next, 0)

    def attempt_of(self, offset: int) -> int:
        """The number of the last delivery of a message; 0 if it is done or was not delivered."""
        row = self._row(offset)
        if row is None or self._visible_at[row] == NEVER:
            return 0
        return int(self._attempts[row])

    def is_current(self, offset: int, popped_at_ms: int) -> bool:
        """Whether this is the last delivery of a message that is not done."""
        row = self._row(offset)
        return (
            row is not None
            and int(self._popped_at[row]) == popped_at_ms
            and self._visible_at[row] != NEVER
        )

    def due(self, now_ms: int, count_max: int) -> list[int]:
        """Return messages that may be delivered again, the oldest first."""
        if self.due_from_ms > now_ms or count_max <= 0:
            return []
        rows = slice(self._first, self._first + self.next - self.base)
        found = np.flatnonzero(self._visible_at[rows] <= now_ms)[:count_max]
        if not len(found):
            # No message is due: find the next due time, and do not search before it.
            self._find_due()
        return [self.base + at for at in found.tolist()]

    def invisible(self, now_ms: int) -> int:
        """How many delivered messages are neither done nor visible again."""
        rows = slice(self._first, self._first + self.next - self.base)
        visible_at = self._visible_at[rows]
        return int(np.count_nonzero((visible_at > now_ms) & (visible_at != NEVER)))

    def due_after(self, now_ms: int) -> int:
        """Return when the next message in flight is visible again; ``NEVER`` if none is."""
        rows = slice(self._first, self._first + self.next - self.base)
        visible_at = self._visible_at[rows]
        return int(visible_at[visible_at > now_ms].min(initial=NEVER))

    def is_blocked(self, now_ms: int) -> bool:
        """Whether any delivered message is neither done nor visible again."""
        if not self.count:
            return False
        return self.due_after(now_ms) != NEVER

    def unacknowledged(self, count_max: int) -> list[int]:
        """Return messages that are delivered and not done, the oldest first."""
        rows = slice(self._first, self._first + self.next - self.base)
        found = np.flatnonzero(self._visible_at[rows] != NEVER)[:count_max]
        return [self.base + at for at in found.tolist()]

    # Changes.

    def deliver(self, end: int, offsets: list[int], now_ms: int, visible_at_ms: int) -> list[int]:
        """Deliver new messages, out of those from ``next`` to ``end``; the others are skipped.

        Return those that are delivered: what was acknowledged before the start is not.
        """
        wanted = [offset for offset in offsets if not self._position.has(offset)]
        self._grow(end - self.base)
        before, self.next = self.next, max(end, self.next)
        for offset in wanted:
            row = self._first + offset - self.base
            self._visible_at[row] = visible_at_ms
            self._popped_at[row] = now_ms
            self._attempts[row] = 1
        if wanted:
            self.count += len(wanted)
            self.due_from_ms = min(self.due_from_ms, visible_at_ms)
        at = before
        for offset in (*wanted, end):
            self._skip(at, offset - at)
            at = offset + 1
        self._advance()
        return wanted

    def deliver_again(
        self, offsets: Iterable[int], now_ms: int, visible_at_ms: int, *, counts: bool = True
    ) -> None:
        """Deliver messages again; ``counts`` is False if this is no further attempt.

        It is none if it repeats a lost answer, or holds a message while its dead letter is written.
        """
        for offset in offsets:
            row = self._first + offset - self.base
            self._visible_at[row] = visible_at_ms
            self._popped_at[row] = now_ms
            if counts:
                self._attempts[row] = min(int(self._attempts[row]) + 1, ATTEMPTS_MAX)
        self._find_due()

    def renew(self, offset: int, now_ms: int, invisible_ms: int) -> int:
        """Set when a message is visible again, from now; return the time of its new receipt."""
        row = self._first + offset - self.base
        # Each receipt of a message has its own time, and is older than the next delivery.
        popped_at_ms = max(now_ms, int(self._popped_at[row]) + 1)
        self._popped_at[row] = popped_at_ms
        visible_at_ms = popped_at_ms + max(invisible_ms, 1)
        self._visible_at[row] = visible_at_ms
        self.due_from_ms = min(self.due_from_ms, visible_at_ms)
        return popped_at_ms

    def hold_until(self, offset: int, visible_at_ms: int) -> None:
        """Set when a message is visible again; its receipt stays valid."""
        self._visible_at[self._first + offset - self.base] = visible_at_ms
        self.due_from_ms = min(self.due_from_ms, visible_at_ms)

    def finish(self, offset: int) -> None:
        """Mark a delivered message as done: acknowledged, or a dead letter."""
        row = self._row(offset)
        if row is not None and self._visible_at[row] != NEVER:
            self._visible_at[row] = NEVER
            self.count -= 1
            if offset == self.base:
                self._advance()

    def lose(self, offset: int) -> None:
        """Skip a delivered message whose bytes are gone."""
        self.finish(offset)
        self._skip(offset, 1)

    def delete_below(self, start: int) -> None:
        """Mark everything below as done: retention deleted it."""
        if start <= self.base:
            return
        if start >= self.next:
            self.base = self.next = start
            self.count, self._first, self.due_from_ms = 0, 0, NEVER
            return
        for offset in self.unacknowledged(start - self.base):
            if offset < start:
                self.finish(offset)

    def take_skipped(self) -> list[Run]:
        """Return the runs that were skipped since the last call."""
        taken, self.skipped = self.skipped, []
        return taken

    def _skip(self, offset: int, count: int) -> None:
        # Some of them may be acknowledged already; to record them again changes nothing.
        if count <= 0:
            return
        if self.skipped and sum(self.skipped[-1]) == offset:
            first, before = self.skipped[-1]
            self.skipped[-1] = (first, before + count)
        else:
            self.skipped.append((offset, count))

    def _row(self, offset: int) -> int | None:
        return self._first + offset - self.base if self.base <= offset < self.next else None

    def _find_due(self) -> None:
        rows = slice(self._first, self._first + self.next - self.base)
        self.due_from_ms = int(self._visible_at[rows].min(initial=NEVER))

    def _advance(self) -> None:
        """Move the base over what is done."""
        end = self._first + self.next - self.base
        while self._first < end:
            rows = self._visible_at[self._first : min(self._first + _LOOKED_AT, end)]
            is_open = rows != NEVER
            done = int(is_open.argmax()) if is_open.any() else len(rows)
            self.base += done
            self._first += done
            if done < len(rows):
                return

    def _grow(self, size: int) -> None:
        """Make room for this many offsets from ``base`` on; new rows are done."""
        held = self.next - self.base
        capacity = len(self._visible_at)
        if self._first + size <= capacity:
            # Rows that were used before may hold anything.
            self._visible_at[self._first + held : self._first + size] = NEVER
            return
        while capacity < 2 * size:
            capacity *= 2
        if self.count == 0:
            capacity = max(_ROWS_MIN, 2 * size)
        columns = (self._visible_at, self._popped_at, self._attempts)
        self._visible_at, self._popped_at, self._attempts = (
            _moved(column, self._first, held, capacity) for column in columns
        )
        self._visible_at[held:] = NEVER
        self._first = 0


def _moved(column: Column, first: int, held: int, capacity: int) -> Column:
    moved = np.zeros(capacity, dtype=column.dtype)
    moved[:held] = column[first : first + held]
    return moved
