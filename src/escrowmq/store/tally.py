"""Counts the messages and transactions in the frames of a log, in log order.

Memory holds one byte per half message, in chunks that are freed when nothing in them is undecided
any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.store.report import Counts
from escrowmq.transaction.catalog import Catalog, SavedCatalog
from escrowmq.transaction.records import (
    CATALOG_RECORDS,
    NOWHERE,
    BatchDecided,
    Decided,
    DecidedMany,
    Moved,
    Parked,
    Prepared,
    Released,
    Resumed,
    Scheduled,
    Stored,
    unpack_rows,
)
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.transaction.records import CatalogRecord, Record, Span

_CHUNK_ROWS = 65_536
_CLOSED, _PREPARED, _PARKED = 0, 1, 2
_OF_STATE: dict[int, int] = {State.PREPARED: _PREPARED, State.PARKED: _PARKED}


class Undecided:
    """The heads of undecided transactions, and which of them are parked."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._open: dict[int, int] = {}
        self._newest = -1
        self.counts = [0, 0, 0]

    def set(self, head: int, state: int) -> None:
        """Set a head's state."""
        number, at = divmod(head, _CHUNK_ROWS)
        chunk = self._chunks.get(number)
        if chunk is None:
            if state == _CLOSED:
                return
            chunk = self._chunks[number] = bytearray(_CHUNK_ROWS)
            self._open[number] = 0
            before, self._newest = self._newest, max(self._newest, number)
            self._drop(before)
        was, chunk[at] = chunk[at], state
        self.counts[was] -= 1
        self.counts[state] += 1
        self._open[number] += bool(state) - bool(was)
        self._drop(number)

    def _drop(self, number: int) -> None:
        # The newest chunk is about to be used again.
        if number != self._newest and self._open.get(number) == 0:
            del self._chunks[number], self._open[number]

    def is_open(self, head: int) -> bool:
        """Whether this transaction was begun and not decided."""
        number, at = divmod(head, _CHUNK_ROWS)
        return number in self._chunks and self._chunks[number][at] != _CLOSED


class Tally:
    """The counts so far."""

    def __init__(self, known: SavedCatalog = SavedCatalog()) -> None:  # noqa: B008 - frozen
        self._counts = Counts()
        self._undecided = Undecided()
        #: Loaded from a checkpoint; applying its records again changes nothing.
        self._catalog = Catalog()
        self._catalog.load(known)
        self._readers: dict[type, Callable[..., None]] = {
            Stored: self._store,
            Scheduled: self._schedule,
            Prepared: self._prepare,
            Decided: self._decide,
            BatchDecided: self._decide_batch,
            DecidedMany: self._decide_many,
            Released: self._release,
            Parked: self._park,
            Resumed: self._resume,
            Moved: self._carry,
            **dict.fromkeys(CATALOG_RECORDS, self._keep),
        }

    def counts(self) -> Counts:
        """Return the counts so far."""
        _, self._counts.prepared, self._counts.parked = self._undecided.counts
        self._counts.topics = len(self._catalog.topics)
        self._counts.groups = len(self._catalog.groups)
        return self._counts

    def read(self, records: list[Record]) -> None:
        """Count the records of one frame."""
        self._counts.frames += 1
        for record in records:
            reader = self._readers.get(type(record))
            if reader is not None:
                reader(record)

    def _keep(self, record: CatalogRecord) -> None:
        self._catalog.apply(record, 0)

    def _store(self, record: Stored) -> None:
        self._counts.stored += len(record.placed.queues)
        self._counts.visible += len(record.placed.queues)

    def _schedule(self, record: Scheduled) -> None:
        self._counts.scheduled += len(record.placed.queues)

    def _prepare(self, record: Prepared) -> None:
        self._counts.halves += len(record.placed.queues)
        if record.head == record.first:
            self._undecided.set(record.head, _PREPARED)

    def _decide(self, record: Decided) -> None:
        if record.state == State.COMMITTED:
            self._counts.committed += 1
        else:
            self._counts.rolled_back += 1
        self._undecided.set(record.head, _CLOSED)
        self._give(record.given)

    def _decide_batch(self, record: BatchDecided) -> None:
        self._counts.committed += len(record.heads)
        for head in record.heads:
            self._undecided.set(head, _CLOSED)
        self._give(record.given)

    def _decide_many(self, record: DecidedMany) -> None:
        committed, rolled_back = unpack_rows(record.committed), unpack_rows(record.rolled_back)
        self._counts.committed += len(committed)
        self._counts.rolled_back += len(rolled_back)
        for head in (*committed, *rolled_back):
            self._undecided.set(head, _CLOSED)
        self._give(record.given)

    def _give(self, given: list[Span]) -> None:
        self._counts.visible += sum(span.count for span in given)

    def _release(self, record: Released) -> None:
        # Messages of deleted topics get no queue offset.
        self._counts.visible += sum(offset != NOWHERE for offset in record.queue_offsets)

    def _park(self, record: Parked) -> None:
        self._mark(record.head, _PARKED)

    def _resume(self, record: Resumed) -> None:
        self._mark(record.head, _PREPARED)

    def _mark(self, head: int, state: int) -> None:
        if self._undecided.is_open(head):
            self._undecided.set(head, state)

    def _carry(self, record: Moved) -> None:
        for row in record.rows:
            if row.head == row.half_offset and row.state in _OF_STATE:
                self._undecided.set(row.head, _OF_STATE[row.state])
