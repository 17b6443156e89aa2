"""The port behind the core: one row per half message.

A row's number is the half message's offset in the half topic; it never changes.  Adapters: the
state table on disk, and a plain dict in ``escrowmq.testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.message import Message
    from escrowmq.transaction.records import Moved, Placed

SPAN_MAX = 0x7FFF
"""Half messages in one request, at most."""

FIRST = 0x8000
"""Set in ``part`` of a request's first row: the rest is the number of its rows.

In the other rows ``part`` is the distance to the first one.
"""


ALONE = FIRST | 1
"""The ``part`` of a request's only row."""


def first_row(half_offset: int, part: int) -> int:
    """The first row of the request to which this row belongs."""
    return half_offset if part & FIRST else half_offset - part


class Half(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row: what is known of a half message without reading it."""

    half_offset: int
    #: Its identity in the log: what the producer was told.
    log_offset: int
    #: Where its bytes are now; differs once retention carried it forward.
    location: int
    size: int
    crc: int
    stored_at_ms: int
    origin: int
    queue: int
    tags: int
    part: int
    state: State
    checks_sent: int
    #: Undecided: when to look at it next.  Committed: when it becomes visible.  Else NEVER.
    next_at_ms: int
    #: The frame that decided it, or -1.
    op_offset: int

    @property
    def first(self) -> int:
        """The first row of the request that brought it."""
        return first_row(self.half_offset, self.part)

    @property
    def is_needed(self) -> bool:
        """Whether it is undecided, parked, or committed but not yet visible."""
        if self.state is State.COMMITTED:
            return self.next_at_ms != NEVER
        return self.state is not State.ROLLED_BACK


class NewRows(msgspec.Struct, kw_only=True):
    """Rows to insert: those of one request."""

    first: int
    origin: int
    state: State
    stored_at_ms: int
    #: Where the first message is; the others follow it.
    log_offset: int
    #: When to look at the rows, from the first one on; those without an item are never due.
    next_at_ms: list[int]
    transaction_id: str
    placed: Placed


Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class HalfColumns(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of many rows: their columns."""

    #: Of a row that is not at hand nothing else here is true.
    is_here: Numbers
    size: Numbers
    stored_at_ms: Numbers
    next_at_ms: Numbers
    origin: Numbers
    queue: Numbers
    part: Numbers
    state: Numbers
    checks_sent: Numbers


class HeldRows(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of some queues that nobody sees yet."""

    #: By queue: half messages that are undecided or parked, and messages that wait for their time.
    undecided: dict[int, int]
    waiting: dict[int, int]
    #: The first of the undecided ones.
    rows: list[int]


class HalfTable(Protocol):
    """What the core asks of its rows.  Questions change nothing."""

    @property
    def end(self) -> int:
        """The next half offset."""
        ...

    def get(self, half_offset: int) -> Half | None:
        """The row, or None if it never was or is gone."""
        ...

    def columns(self, rows: Numbers) -> HalfColumns:
        """What is known of these rows, as far as they are at hand; ``get`` knows the others."""
        ...

    def find(self, transaction_id: str) -> int | None:
        """The newest request's first row with exactly this transaction id, if still known."""
        ...

    def may_have_id(self, half: Half, transaction_id: str) -> bool:
        """Whether the row can be of this transaction, as far as its hash tells."""
        ...

    def holds(self, half: Half, message: Message) -> bool:
        """Whether the stored half has this message's topic and body."""
        ...

    def decided_by(self, half: Half) -> tuple[str, int]:
        """Who decided it, and when; ``("", 0)`` once retention has deleted the op record."""
        ...

    def queues(self, first: int, count: int) -> Sequence[int]:
        """The queue of each of these rows."""
        ...

    def sizes(self, first: int, count: int) -> int:
        """Stored bytes of these rows together."""
        ...

    def held_in(self, queues: Sequence[int], rows_max: int) -> HeldRows:
        """What is undecided or waits in these queues; names so many undecided rows at most."""
        ...

    def origins_needed(self, origins: set[int]) -> set[int]:
        """Those of these origins with a row that is undecided, parked or not yet visible."""
        ...

    def identity(self, half: Half) -> tuple[str, int]:
        """Transaction id and part number, as they were prepared."""
        ...

    def insert(self, rows: NewRows) -> None:
        """Add rows at the end."""
        ...

    def decide(self, first: int, count: int, state: State, op_offset: int) -> None:
        """Set the state of rows for good."""
        ...

    def decide_many(self, rows: Numbers, state: State, op_offset: int) -> None:
        """Set the state of requests of one row each, for good; no row is named twice."""
        ...

    def schedule(self, half_offset: int, at_ms: int) -> None:
        """Set when to look at this row next; NEVER when there is nothing more to do."""
        ...

    def release(self, rows: Numbers) -> None:
        """These rows became visible: there is nothing more to do."""
        ...

    def count_check(self, half_offset: int, checks_sent: int, next_at_ms: int) -> None:
        """Set the number of checks sent and when to look next."""
        ...

    def mark(self, first: int, count: int, state: State) -> None:
        """Park or resume rows."""
        ...

    def restore(self, moved: Moved, location: int) -> None:
        """Set whole rows as they were carried forward; the first one's bytes are at location."""
        ...
