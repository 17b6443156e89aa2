"""The system's topics as views: nothing of them is stored, everything is read from what there is.

* Half messages stand in the half topic at their half offsets: the state table is its index.
* Decisions stand in the op topic where their records stand in the log, so its offsets have gaps.
* Parked transactions stand in theirs in the order in which they were parked.

A pull looks at so much and no more; if it finds nothing there it says where to go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.protocol.message_views import (
    HALF_TOPIC,
    OP_TAG,
    PARKED_TOPIC,
    half_topic_view,
    op_message,
)
from escrowmq.protocol.properties import tags_code
from escrowmq.store.log_scan import LogScan
from escrowmq.store.reader import Pulled, Status
from escrowmq.transaction.records import PLAIN, Decided, Op, Parked
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from escrowmq.store.log_scan import Passed
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half

LOOKED_AT_MAX = 512
"""Rows that one pull looks at."""

OP_BITS = 12
"""An op message's offset is its record's log offset, shifted by so many bits, and its number."""

OP_ROWS = 512
"""Half messages that one op message names, unless a decision has more than 4,096 times as many."""

_OP_CODE = tags_code(OP_TAG)
_Ranges = list[tuple[int, int]]


class Seen(NamedTuple):
    """A half message as a view shows it."""

    half: Half
    at_ms: int


class _RowsView(ABC):
    """What the views of half messages share."""

    topic: str

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    @abstractmethod
    def start(self) -> int:
        """The lowest offset at which there may be a message."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Where the next message will be."""

    @abstractmethod
    def _seen(self, offset: int) -> Seen | None:
        """What is there, if there is anything."""

    def _after(self, offset: int) -> int:
        """The next offset at which there may be a message."""
        return offset + 1

    def pull(
        self, offset: int, *, count_max: int, bytes_max: int, codes: Container[int] | None
    ) -> Pulled:
        """Messages from this offset on."""
        start, end = self.start, self.end
        outside = _outside(offset, start, end)
        if outside is not None:
            return outside
        messages: list[bytes] = []
        total = 0
        for _ in range(LOOKED_AT_MAX):
            if offset >= end or len(messages) == count_max:
                break
            seen = self._seen(offset)
            if seen is not None and (codes is None or seen.half.tags in codes):
                total += seen.half.size
                # At least one, however large: a reader must get past it.
                if messages and total > bytes_max:
                    break
                messages.append(self._message(seen, offset))
            offset = min(self._after(offset), end)
        status = Status.FOUND if messages else Status.NO_MATCH
        return Pulled(status=status, messages=messages, next_offset=offset, start=start, end=end)

    def _message(self, seen: Seen, offset: int) -> bytes:
        return half_topic_view(
            self._store.reading.record_of(seen.half),
            offset,
            topic=self.topic,
            checks_sent=seen.half.checks_sent,
            stored_at_ms=seen.at_ms,
        )

    def _whole(self, row: int) -> Half | None:
        """The half message of a row, if there is one and its bytes are there."""
        store = self._store
        half = store.table.get(row)
        if half is None or half.origin == PLAIN:
            return None
        is_gone = half.location < store.log.start or store.lost.hold(half.location)
        return None if is_gone else half

    def offset_at(self, visible_at_ms: int) -> int:
        """The first message seen at or after this time, or one before it."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            at_ms = self.at_ms(middle)
            # Of what is gone nobody knows the time: then rather too early than too late.
            if 0 < at_ms < visible_at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    @abstractmethod
    def at_ms(self, offset: int) -> int:
        """When what is at this offset was seen first; 0 if nobody can tell."""


class HalfView(_RowsView):
    """The half topic: every half message that is still stored, whatever became of it."""

    topic = HALF_TOPIC

    @property
    def start(self) -> int:
        """The lowest row; undecided ones may be older than all others."""
        table = self._store.table
        oldest = min(table.survivors.rows, default=table.start) if table.start else 0
        return min(oldest, table.start)

    @property
    def end(self) -> int:
        """The next half offset, as far as all before it are durable."""
        return self._store.settled_rows

    def _seen(self, offset: int) -> Seen | None:
        half = self._whole(offset)
        return None if half is None else Seen(half, half.stored_at_ms)

    def _after(self, offset: int) -> int:
        table = self._store.table
        if offset + 1 >= table.start:
            return offset + 1
        older = (row for row in table.survivors.rows if offset < row < table.start)
        return min(older, default=table.start)

    def at_ms(self, offset: int) -> int:
        """When this half message, or the next one that is there, was stored."""
        table = self._store.table
        half = table.get(offset) or table.get(self._after(offset))
        return 0 if half is None else half.stored_at_ms


class ParkedView(_RowsView):
    """The topic of the parked: their half messages, once for each time they were parked."""

    topic = PARKED_TOPIC

    @property
    def start(self) -> int:
        """The first that is remembered."""
        return self._store.parkings.start

    @property
    def end(self) -> int:
        """The next one, as far as all before it are durable."""
        return self._store.parkings.end_below(self._store.settled)

    def _seen(self, offset: int) -> Seen | None:
        frame, number = self._store.parkings.find(offset)
        if self._store.lost.hold(frame):
            return None
        passed = self._store.reading.frame(frame)
        (parked,) = (record for record in passed.records if isinstance(record, Parked))
        row = _nth(self._ranges(parked.head), number)
        half = None if row is None else self._whole(row)
        return None if half is None else Seen(half, passed.stored_at_ms)

    def _ranges(self, head: int) -> _Ranges:
        """All rows of a transaction; once it is decided, only the decision names them."""
        store = self._store
        half = store.table.get(head)
        if half is None:
            return []
        is_decided = half.state in (State.COMMITTED, State.ROLLED_BACK)
        op_offset = store.table.op_offset(half) if is_decided else -1
        if op_offset >= store.log.start and not store.lost.hold(op_offset):
            for record in store.reading.frame(op_offset).records:
                if isinstance(record, Decided):
                    return record.ranges
        return store.core.ranges_of(head)

    def at_ms(self, offset: int) -> int:
        """When this message was parked."""
        if not self.start <= offset < self.end:
            return 0
        frame, _ = self._store.parkings.find(offset)
        return 0 if self._store.lost.hold(frame) else self._store.reading.frame(frame).stored_at_ms


class OpView:
    """The op topic: which half messages were settled, decision by decision."""

    def __init__(self, store: Store, store_host: bytes) -> None:
        self._store = store
        self._store_host = store_host
        self._scan = LogScan(store)

    @property
    def start(self) -> int:
        """Where the log starts."""
        return self._store.log.start << OP_BITS

    @property
    def end(self) -> int:
        """Where what is durable of the log ends."""
        return self._store.settled << OP_BITS

    def pull(
        self, offset: int, *, count_max: int, bytes_max: int, codes: Container[int] | None
    ) -> Pulled:
        """Op messages from this offset on."""
        start, end = self.start, self.end
        outside = _outside(offset, start, end)
        if outside is not None:
            return outside
        messages: list[bytes] = []
        next_offset = end
        if codes is None or _OP_CODE in codes:
            total = 0
            for place, message in self._messages(offset):
                total += len(message)
                next_offset = place
                is_full = len(messages) == count_max or total > bytes_max
                if not message or (messages and is_full):
                    break
                messages.append(message)
        if messages:
            status = Status.FOUND
        else:
            status = Status.NOTHING_NEW if next_offset == end else Status.NO_MATCH
        return Pulled(
            status=status, messages=messages, next_offset=next_offset, start=start, end=end
        )

    def _messages(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Op messages and their offsets; last the offset at which to go on, without one."""
        for passed in self._scan.frames(offset >> OP_BITS):
            if passed.end == passed.log_offset:
                yield passed.log_offset << OP_BITS, b""
            for record in passed.records:
                if isinstance(record, Op):
                    yield from self._of(passed, record.ranges, offset)

    def _of(self, passed: Passed, ranges: _Ranges, offset: int) -> Iterator[tuple[int, bytes]]:
        first = passed.log_offset << OP_BITS
        count = sum(count for _, count in ranges)
        # However many it settles, its messages must fit between two offsets of the log.
        size = max(OP_ROWS, -(-count >> OP_BITS))
        skipped = max(offset - first, 0)
        rows = islice(_rows(ranges), skipped * size, None)
        for place in range(first + skipped, first - (-count // size)):
            yield (
                place,
                op_message(
                    islice(rows, size),
                    place,
                    passed.log_offset,
                    passed.stored_at_ms,
                    self._store_host,
                ),
            )

    def offset_at(self, visible_at_ms: int) -> int:
        """The first decision at or after this time, or something before it."""
        return self._scan.offset_at(visible_at_ms) << OP_BITS

    def at_ms(self, offset: int) -> int:
        """When what follows in the log was stored; of its end, when the last thing was."""
        passed = next(self._scan.frames(offset >> OP_BITS))
        return passed.stored_at_ms or (self._store.last_at_ms if self._store.settled else 0)


def _rows(ranges: _Ranges) -> Iterator[int]:
    return chain.from_iterable(range(first, first + count) for first, count in ranges)


def _nth(ranges: _Ranges, number: int) -> int | None:
    for first, count in ranges:
        if number < count:
            return first + number
        number -= count
    return None


def _outside(offset: int, start: int, end: int) -> Pulled | None:
    """What a pull from outside a queue is told."""
    if offset < start:
        status, next_offset = Status.BEHIND_START, start
    elif offset < end:
        return None
    else:
        status = Status.NOTHING_NEW if offset == end else Status.BEYOND_END
        next_offset = end
    return Pulled(status=status, next_offset=next_offset, start=start, end=end)
