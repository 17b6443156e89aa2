"""Counts the messages and transactions in the frames of a log, in log order.

Memory holds one byte per half message, in chunks that are freed when nothing in them is undecided
any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from escrowmq.store.repair.report import LogCounts
from escrowmq.transaction import records as kinds
from escrowmq.transaction.memory.catalog import Catalog, SavedCatalog
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NOWHERE, CatalogRecord, unpack_rows
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.transaction.records import Record, Span

    Heads = list[int] | memoryview[int]

_UNCOUNTED = kinds.NameRecord | kinds.HistoryRecord | kinds.PopRecord | kinds.Asked | kinds.Answered
_CHUNK_ROWS = 65_536
_CLOSED, _PREPARED, _PARKED = 0, 1, 2
_OF_STATE: dict[int, int] = {State.PREPARED: _PREPARED, State.PARKED: _PARKED}


class UndecidedHeads:
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
        self._counts = LogCounts()
        self._undecided = UndecidedHeads()
        #: Loaded from a checkpoint; applying its records again changes nothing.
        self._catalog = Catalog()
        self._catalog.load(known)

    def counts(self) -> LogCounts:
        """Return the counts so far."""
        _, self._counts.prepared, self._counts.parked = self._undecided.counts
        self._counts.topics = len(self._catalog.topics)
        self._counts.groups = len(self._catalog.groups)
        return self._counts

    def read(self, records: list[Record]) -> None:
        """Count the records of one frame."""
        self._counts.frames += 1
        for record in records:
            self._read(record)

    def _read(self, record: Record) -> None:  # noqa: C901, PLR0912 - one case per record
        counts = self._counts
        match record:
            case kinds.Prepared():
                counts.halves += len(record.placed.queues)
                if record.head == record.first:
                    self._undecided.set(record.head, _PREPARED)
            case kinds.Decided(state=State.COMMITTED):
                self._decide(record.given, [record.head], [])
            case kinds.Decided():
                self._decide(record.given, [], [record.head])
            case kinds.BatchDecided():
                self._decide(record.given, record.heads, [])
            case kinds.DecidedMany():
                committed, rolled_back = map(unpack_rows, (record.committed, record.rolled_back))
                self._decide(record.given, committed, rolled_back)
            case kinds.Stored():
                counts.stored += len(record.placed.queues)
                counts.visible += len(record.placed.queues)
            case kinds.Scheduled():
                counts.scheduled += len(record.placed.queues)
            case kinds.Released():
                # Messages of deleted topics get no queue offset.
                counts.visible += sum(offset != NOWHERE for offset in record.queue_offsets)
            case Recalled():
                counts.recalled += 1
            case kinds.Parked():
                self._mark(record.head, _PARKED)
            case kinds.Resumed():
                self._mark(record.head, _PREPARED)
            case kinds.Carried():
                self._carry(record)
            case _ if isinstance(record, CatalogRecord):
                self._catalog.apply(record, 0)
            case _ if isinstance(record, _UNCOUNTED):
                pass
            case _:
                assert_never(record)

    def _decide(self, given: list[Span], committed: Heads, rolled_back: Heads) -> None:
        self._counts.committed += len(committed)
        self._counts.rolled_back += len(rolled_back)
        for head in (*committed, *rolled_back):
            self._undecided.set(head, _CLOSED)
        self._counts.visible += sum(span.count for span in given)

    def _mark(self, head: int, state: int) -> None:
        if self._undecided.is_open(head):
            self._undecided.set(head, state)

    def _carry(self, record: kinds.Carried) -> None:
        for row in record.rows:
            if row.head == row.half_offset and row.state in _OF_STATE:
                self._undecided.set(row.head, _OF_STATE[row.state])
