"""Rows of half messages in a plain dict: the ``HalfTable`` for tests of the core."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from escrowmq.testing.memory_log import MemoryLog
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, HALF_COLUMNS, Half, HalfColumns, HeldRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.message import SentMessage
    from escrowmq.transaction.records import Carried
    from escrowmq.transaction.table import NewRows, Numbers

_DECIDED = (State.COMMITTED, State.ROLLED_BACK)
#: Placeholder for a missing row.
_NOBODY = Half(
    half_offset=-1,
    log_offset=-1,
    location=-1,
    size=0,
    crc=0,
    stored_at_ms=0,
    origin=0,
    queue=0,
    tags=0,
    part=0,
    state=State.PREPARED,
    checks_sent=0,
    next_at_ms=NEVER,
    op_offset=-1,
)


class MemoryTable:
    """All rows by half offset; no row is ever deleted.

    Like the real table, it reads from the log what a row does not contain: the transaction id, the
    message, and the decider.
    """

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = MemoryLog() if log is None else log
        self.rows: dict[int, Half] = {}
        self.end = 0

    # Questions.

    def get(self, half_offset: int) -> Half | None:
        """Return the row, or None if it never existed."""
        return self.rows.get(half_offset)

    def columns(self, rows: Numbers) -> HalfColumns:
        """Return the columns of these rows."""
        halves = [self.rows.get(row, _NOBODY) for row in rows.tolist()]
        return HalfColumns(
            is_here=np.array([half is not _NOBODY for half in halves], dtype=np.bool_),
            **{
                name: np.array([getattr(half, name) for half in halves], dtype=np.int64)
                for name in HALF_COLUMNS
            },
        )

    def find(self, transaction_id: str) -> int | None:
        """Return the first row of the newest request with exactly this transaction id."""
        for row in sorted(self.rows, reverse=True):
            half = self.rows[row]
            if half.part & FIRST and self.identity(half)[0] == transaction_id:
                return row
        return None

    def may_have_id(self, half: Half, transaction_id: str) -> bool:
        """Return whether the row belongs to this transaction."""
        return self.identity(self.rows[half.first])[0] == transaction_id

    def holds(self, half: Half, message: SentMessage) -> bool:
        """Return whether the stored half message has this message's topic and body."""
        stored = self.log.message_at(half.location)
        return (stored.topic, stored.body) == (message.topic, message.body)

    def decided_by(self, half: Half) -> tuple[str, int]:
        """Return the decider and the time of the decision."""
        return self.log.decision(half.op_offset)

    def queues(self, first: int, count: int) -> Sequence[int]:
        """Return the queue of each of these rows."""
        return [self.rows[row].queue for row in range(first, first + count)]

    def sizes(self, first: int, count: int) -> int:
        """Return the total stored bytes of these rows."""
        return sum(self.rows[row].size for row in range(first, first + count))

    def origins_needed(self, origins: set[int]) -> set[int]:
        """Return the origins among these that have a row that is still needed."""
        return origins & {half.origin for half in self.rows.values() if half.is_needed}

    def identity(self, half: Half) -> tuple[str, int]:
        """Return transaction id and request number, as they were prepared."""
        return self.log.identity(half.half_offset)

    def held_in(self, queues: Sequence[int], rows_max: int) -> HeldRows:
        """Return the undecided and the scheduled rows of these queues."""
        halves = [half for half in self.rows.values() if half.queue in queues and half.is_needed]
        undecided = [half for half in halves if half.state is not State.COMMITTED]
        waiting = [half for half in halves if half.state is State.COMMITTED]
        return HeldRows(
            undecided=Counter(half.queue for half in undecided),
            waiting=Counter(half.queue for half in waiting),
            rows=[half.half_offset for half in undecided][:rows_max],
        )

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Return due rows: undecided ones to check, committed ones to make visible."""
        due = [(half.next_at_ms, row) for row, half in self.rows.items()]
        return [row for at_ms, row in sorted(due) if at_ms <= now_ms][:limit]

    # Changes.

    def insert(self, rows: NewRows) -> None:
        """Append rows; rows that already exist stay unchanged."""
        assert rows.first <= self.end, "rows are added in order"
        placed = rows.placed
        log_offset = rows.where.messages
        count = len(placed.sizes)
        next_at_ms = [*rows.next_at_ms, *[NEVER] * (count - len(rows.next_at_ms))]
        for index, row in enumerate(range(rows.first, rows.first + count)):
            if row == self.end:
                self.rows[row] = Half(
                    half_offset=row,
                    log_offset=log_offset,
                    location=log_offset,
                    size=placed.sizes[index],
                    crc=placed.crcs[index],
                    stored_at_ms=rows.where.at_ms,
                    origin=rows.origin,
                    queue=placed.queues[index],
                    tags=placed.tags[index],
                    part=index or FIRST | count,
                    state=rows.state,
                    checks_sent=0,
                    next_at_ms=next_at_ms[index],
                    op_offset=-1,
                )
                self.end = row + 1
            log_offset += placed.sizes[index]

    def decide(self, first: int, count: int, state: State, op_offset: int) -> None:
        """Set the final state of rows."""
        assert state in _DECIDED
        for row in range(first, first + count):
            self._change(row, state=state, op_offset=op_offset, next_at_ms=NEVER)

    def decide_many(self, rows: Numbers, state: State, op_offset: int) -> None:
        """Set the final state of requests with one row each."""
        for row in rows.tolist():
            self.decide(row, 1, state, op_offset)

    def schedule(self, half_offset: int, at_ms: int) -> None:
        """Set when this row is due next; NEVER if there is nothing more to do."""
        self._change(half_offset, next_at_ms=at_ms)

    def release(self, rows: Numbers) -> None:
        """Note that these rows became visible and are never due again."""
        for row in rows.tolist():
            self._change(row, next_at_ms=NEVER)

    def count_check(self, half_offset: int, checks_sent: int, next_at_ms: int) -> None:
        """Set the number of checks sent, and when the row is due next."""
        self._change(half_offset, checks_sent=checks_sent, next_at_ms=next_at_ms)

    def mark(self, first: int, count: int, state: State) -> None:
        """Park or resume rows."""
        for row in range(first, first + count):
            self._change(row, state=state)

    def restore(self, carried: Carried, location: int) -> None:
        """Set the new locations of rows that were carried forward; the first is at ``location``."""
        for row, size in zip(carried.rows, carried.placed.sizes, strict=True):
            self._change(row.half_offset, location=location)
            location += size

    def _change(self, row: int, **fields: Any) -> None:  # noqa: ANN401 - fields of Half
        self.rows[row] = msgspec.structs.replace(self.rows[row], **fields)
