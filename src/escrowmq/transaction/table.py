"""Interface of the table behind the core: one row per half message.

A row's number is the half message's offset in the half topic; it never changes. Implementations:
the state table on disk, and a plain dict in ``escrowmq.testing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.model.message import SentMessage
    from escrowmq.transaction.core import Where
    from escrowmq.transaction.records import Carried, Placed

SPAN_MAX = 0x7FFF
"""Maximum number of half messages in one request."""

FIRST = 0x8000
"""Flag in ``part`` of a request's first row; the other bits are the number of its rows.

In the other rows ``part`` is the distance to the first one.
"""


ALONE = FIRST | 1
"""The ``part`` of a request's only row."""


def first_row(half_offset: int, part: int) -> int:
    """The first row of the request to which this row belongs."""
    return half_offset if part & FIRST else half_offset - part


class Half(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row: the facts about a half message that need no read of its bytes."""

    half_offset: int
    #: Its identity in the log: the offset that the producer was told.
    log_offset: int
    #: Log offset of its bytes now; it differs once the half message is carried forward.
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
    #: Undecided: when its next check is due. Committed: when it becomes visible. Otherwise NEVER.
    next_at_ms: int
    #: Log offset of the frame that decided it, or -1.
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
    #: Where the first message is; the others follow it.
    where: Where
    #: Due times of the rows, from the first one on; rows without an item are never due.
    next_at_ms: list[int]
    transaction_id: str
    placed: Placed


Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class HalfColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of many rows."""

    #: False for a row that is not available as columns; its other values then mean nothing.
    is_here: Numbers
    size: Numbers
    stored_at_ms: Numbers
    next_at_ms: Numbers
    origin: Numbers
    queue: Numbers
    part: Numbers
    state: Numbers
    checks_sent: Numbers


HALF_COLUMNS = HalfColumns.__struct_fields__[1:]
"""Names of all columns of ``HalfColumns`` but ``is_here``."""


class HeldRows(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of some queues that are not yet visible."""

    #: By queue: counts of half messages that are undecided or parked, and of messages that wait for
    #: their time.
    undecided: dict[int, int]
    waiting: dict[int, int]
    #: Half offsets of the first undecided ones.
    rows: list[int]


class HalfTable(Protocol):
    """Table of rows, as the core uses it. Queries change nothing."""

    @property
    def end(self) -> int:
        """The next half offset."""

    def get(self, half_offset: int) -> Half | None:
        """The row, or None if it never existed or is gone."""

    def columns(self, rows: Numbers) -> HalfColumns:
        """Columns of these rows, where available; ``get`` knows the others."""

    def find(self, transaction_id: str) -> int | None:
        """The first row of the newest known request with exactly this transaction id, or None."""

    def may_have_id(self, half: Half, transaction_id: str) -> bool:
        """Whether the row may belong to this transaction, judged by a hash of the id."""

    def holds(self, half: Half, message: SentMessage) -> bool:
        """Whether the stored half has this message's topic and body."""

    def decided_by(self, half: Half) -> tuple[str, int]:
        """Author and time of its decision; ``("", 0)`` once retention has deleted the op record."""

    def queues(self, first: int, count: int) -> Sequence[int]:
        """The queue of each of these rows."""

    def sizes(self, first: int, count: int) -> int:
        """Stored bytes of these rows together."""

    def held_in(self, queues: Sequence[int], rows_max: int) -> HeldRows:
        """Undecided and waiting messages of these queues, and at most ``rows_max`` half offsets."""

    def origins_needed(self, origins: set[int]) -> set[int]:
        """The ones of these origins with a row that is undecided, parked or not yet visible."""

    def identity(self, half: Half) -> tuple[str, int]:
        """Transaction id and request number, as they were prepared."""

    def insert(self, rows: NewRows) -> None:
        """Add rows at the end."""

    def decide(self, first: int, count: int, state: State, op_offset: int) -> None:
        """Set the final state of rows."""

    def decide_many(self, rows: Numbers, state: State, op_offset: int) -> None:
        """Set the final state of requests of one row each; no row is named twice."""

    def schedule(self, half_offset: int, at_ms: int) -> None:
        """Set when this row is due next; NEVER if it needs no more attention."""

    def release(self, rows: Numbers) -> None:
        """Note that these rows became visible: they are never due again."""

    def count_check(self, half_offset: int, checks_sent: int, next_at_ms: int) -> None:
        """Set the number of checks sent, and when the next one is due."""

    def mark(self, first: int, count: int, state: State) -> None:
        """Park or resume rows."""

    def restore(self, carried: Carried, location: int) -> None:
        """Set whole rows that were carried forward; the first one's bytes are at ``location``."""
