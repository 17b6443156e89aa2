"""The system topics as views: they are not stored but computed from the log and the state table.

* The half topic has half messages at their half offsets: the state table is its index.
* The op topic has decisions at the log offsets of their records, so its offsets have gaps.
* The topic of parked transactions has them in the order in which they were parked.

A pull examines a limited range; if that has no message, the answer says where to continue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from itertools import chain, islice
from typing import NamedTuple

from escrowmq.protocol.message.message_views import (
    HALF_TOPIC,
    OP_TAG,
    PARKED_TOPIC,
    half_topic_view,
    op_message,
)
from escrowmq.protocol.message.properties import tags_code
from escrowmq.store.reading.log_scan import LogScan, Passed
from escrowmq.store.reading.reader import Pulled, ReadStatus
from escrowmq.store.store import Store
from escrowmq.transaction.records import PLAIN, Decided, Op, Parked
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half

LOOKED_AT_MAX = 512
"""Most rows that one pull examines."""

OP_BITS = 12
"""An op message's offset is its record's log offset shifted left by this many bits, plus the
message's number within the record."""

OP_ROWS = 512
"""Half messages that one op message names; more only if a decision has over 4,096 times as many."""

_OP_CODE = tags_code(OP_TAG)
_Ranges = list[tuple[int, int]]


class _Limits(NamedTuple):
    """How much a pull takes, and which tags."""

    count_max: int
    bytes_max: int
    codes: Container[int] | None


class Seen(NamedTuple):
    """A half message as a view shows it."""

    half: Half
    at_ms: int


class _View(ABC):
    """Common part of all views."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    @abstractmethod
    def start(self) -> int:
        """The lowest offset at which there may be a message."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The offset of the next message."""

    def pull(
        self, offset: int, *, count_max: int, bytes_max: int, codes: Container[int] | None
    ) -> Pulled:
        """Return messages from this offset on."""
        start, end = self.start, self.end
        messages: list[bytes] = []
        if offset < start:
            status, offset = ReadStatus.BEHIND_START, start
        elif offset >= end:
            status, offset = ReadStatus.NOTHING_NEW if offset == end else ReadStatus.BEYOND_END, end
        else:
            limits = _Limits(count_max, bytes_max, codes)
            status, offset = self._take(messages, offset, end, limits)
        return Pulled(status=status, messages=messages, next_offset=offset, start=start, end=end)

    @abstractmethod
    def _take(
        self, messages: list[bytes], offset: int, end: int, limits: _Limits
    ) -> tuple[ReadStatus, int]:
        """Add messages from this offset on; return the status and where to continue."""


class _RowsView(_View):
    """Common part of the views of half messages."""

    topic: str

    @abstractmethod
    def _seen(self, offset: int) -> Seen | None:
        """Return the half message at this offset, or None."""

    def _after(self, offset: int) -> int:
        """Return the next offset at which there may be a message."""
        return offset + 1

    def _take(
        self, messages: list[bytes], offset: int, end: int, limits: _Limits
    ) -> tuple[ReadStatus, int]:
        total, codes = 0, limits.codes
        for _ in range(LOOKED_AT_MAX):
            if offset >= end or len(messages) == limits.count_max:
                break
            seen = self._seen(offset)
            if seen is not None and (codes is None or seen.half.tags in codes):
                total += seen.half.size
                # At least one, however large, so that a reader gets past it.
                if messages and total > limits.bytes_max:
                    break
                messages.append(self._message(seen, offset))
            offset = min(self._after(offset), end)
        return ReadStatus.FOUND if messages else ReadStatus.NO_MATCH, offset

    def _message(self, seen: Seen, offset: int) -> bytes:
        return half_topic_view(
            self._store.reading.record_of(seen.half),
            offset,
            topic=self.topic,
            checks_sent=seen.half.checks_sent,
            stored_at_ms=seen.at_ms,
        )

    def _whole(self, row: int) -> Half | None:
        """Return the half message of a row; None if there is none or its bytes are gone."""
        store = self._store
        half = store.table.get(row)
        if half is None or half.origin == PLAIN:
            return None
        is_gone = half.location < store.log.start or store.lost.hold(half.location)
        return None if is_gone else half

    def offset_at(self, visible_at_ms: int) -> int:
        """Return the offset of the first message seen at or after this time, or a lower one."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            at_ms = self.at_ms(middle)
            # The time of a deleted message is unknown; an offset too low is safe, too high is not.
            if 0 < at_ms < visible_at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    @abstractmethod
    def at_ms(self, offset: int) -> int:
        """Return when the message at this offset was first seen; 0 if that is unknown."""


class HalfView(_RowsView):
    """The half topic: every half message that is still stored, decided or not."""

    topic = HALF_TOPIC

    @property
    def start(self) -> int:
        """The lowest row; survivors are older than all others."""
        table = self._store.table
        oldest = min(table.survivors.rows, default=table.start) if table.start else 0
        return min(oldest, table.start)

    @property
    def end(self) -> int:
        """The half offset after the last durable half message."""
        return self._store.durable_rows

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
        """Return when this half message, or the next one that exists, was stored."""
        table = self._store.table
        half = table.get(offset) or table.get(self._after(offset))
        return 0 if half is None else half.stored_at_ms


class ParkedView(_RowsView):
    """The topic of parked transactions: their half messages, once for each parking."""

    topic = PARKED_TOPIC

    @property
    def start(self) -> int:
        """The lowest offset that the store remembers."""
        return self._store.parkings.start

    @property
    def end(self) -> int:
        """The offset after the last half message whose parking is durable."""
        return self._store.parkings.end_below(self._store.durable_end)

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
        """Return a transaction's rows. After the decision, only its record lists their ranges."""
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
        """Return when this message was parked; 0 if that is unknown."""
        if not self.start <= offset < self.end:
            return 0
        frame, _ = self._store.parkings.find(offset)
        return 0 if self._store.lost.hold(frame) else self._store.reading.frame(frame).stored_at_ms


class OpView(_View):
    """The op topic: which half messages were decided, decision by decision."""

    def __init__(self, store: Store, store_host: bytes) -> None:
        super().__init__(store)
        self._store_host = store_host
        self._scan = LogScan(store)

    @property
    def start(self) -> int:
        """The start of the log."""
        return self._store.log.start << OP_BITS

    @property
    def end(self) -> int:
        """The durable end of the log."""
        return self._store.durable_end << OP_BITS

    def _take(
        self, messages: list[bytes], offset: int, end: int, limits: _Limits
    ) -> tuple[ReadStatus, int]:
        next_offset = end
        if limits.codes is None or _OP_CODE in limits.codes:
            total = 0
            for place, message in self._messages(offset):
                total += len(message)
                next_offset = place
                is_full = len(messages) == limits.count_max or total > limits.bytes_max
                if not message or (messages and is_full):
                    break
                messages.append(message)
        if messages:
            return ReadStatus.FOUND, next_offset
        return ReadStatus.NOTHING_NEW if next_offset == end else ReadStatus.NO_MATCH, next_offset

    def _messages(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield offsets and op messages; last the offset at which to continue, with no message."""
        for passed in self._scan.frames(offset >> OP_BITS):
            if passed.end == passed.log_offset:
                yield passed.log_offset << OP_BITS, b""
            for record in passed.records:
                if isinstance(record, Op):
                    yield from self._of(passed, record.ranges, offset)

    def _of(self, passed: Passed, ranges: _Ranges, offset: int) -> Iterator[tuple[int, bytes]]:
        first = passed.log_offset << OP_BITS
        count = sum(count for _, count in ranges)
        # However many rows a decision has, its messages must fit between two log offsets.
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
        """Return the offset of the first decision at or after this time, or a lower one."""
        return self._scan.offset_at(visible_at_ms) << OP_BITS

    def at_ms(self, offset: int) -> int:
        """Return when the next frame of the log was stored; at the log's end, the last frame."""
        passed = next(self._scan.frames(offset >> OP_BITS))
        return passed.stored_at_ms or (self._store.last_at_ms if self._store.durable_end else 0)


def _rows(ranges: _Ranges) -> Iterator[int]:
    return chain.from_iterable(range(first, first + count) for first, count in ranges)


def _nth(ranges: _Ranges, number: int) -> int | None:
    for first, count in ranges:
        if number < count:
            return first + number
        number -= count
    return None
