"""Reads visible messages, and finds stored ones.

Consumers see only committed messages. A committed half message is patched where it differs from the
stored one: its queue offset, its transaction flag, its store time and where it was prepared. Every
read by log offset goes through the state table first.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.message_views import stored_at_ms, visible_view
from escrowmq.protocol.message.properties import index_facts
from escrowmq.protocol.message.stored_message import LOG_OFFSET_PLACE, skim
from escrowmq.store.index.key_index import key_hash
from escrowmq.store.queue.consume_queue import SEARCHED_ENTRIES_MAX
from escrowmq.store.reading.visible_from import visible_from_ms
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from escrowmq.store.queue.consume_queue import ConsumeQueue, QueueEntry
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half

RECORD_BYTES_MIN = 91
RECORD_BYTES_MAX = BODY_BYTES_MAX + 65_536
#: The most messages examined for one key; different keys may share a hash.
CANDIDATES_MAX = 10_240
#: Entries that one filtered pull examines.
FILTERED_MAX = 4_096
LOOKED_MAX = 256
"""Messages that one search by key reads; all other requests wait for it."""
_PAGE = 64


class ReadStatus(StrEnum):
    """How a read from a queue ended."""

    FOUND = "found"
    #: No message that was examined has a wanted tag.
    NO_MATCH = "no_match"
    #: The offset is the queue's end: there is no message yet.
    NOTHING_NEW = "nothing_new"
    #: Retention has deleted this offset: the reader lagged and missed messages.
    BEHIND_START = "behind_start"
    BEYOND_END = "beyond_end"
    NO_SUCH_QUEUE = "no_such_queue"


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """Messages from a queue, and where the reader stands."""

    status: ReadStatus
    #: Fewer than the offsets that were read, or none, if damage destroyed some.
    messages: list[bytes] = []
    #: The queue offset to read next.
    next_offset: int = 0
    start: int = 0
    end: int = 0


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A message found by its log offset."""

    message: bytes
    #: None for an ordinary message. Only admins may see an undecided half message.
    half: Half | None
    is_visible: bool

    @property
    def may_become_visible(self) -> bool:
        """Whether it is a half message that was not rolled back."""
        return self.half is not None and self.half.state is not State.ROLLED_BACK


class VisibleMessage(msgspec.Struct, frozen=True, gc=False):
    """A visible message as it was written."""

    queue_offset: int
    visible_at_ms: int
    record: bytes


class StoreReader:
    """Read-only queries of a store."""

    def __init__(self, store: Store, searched_max: int = SEARCHED_ENTRIES_MAX) -> None:
        self._store = store
        #: Queue entries that a search for one message examines.
        self._searched_max = searched_max

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if nothing was ever sent to it."""
        return self._store.queue(topic, queue_id)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        codes: Container[int] | None = None,
        examined_max: int | None = None,
    ) -> Pulled:
        """Return visible messages from this offset on; with ``codes``, only with such tags.

        A filtered read examines ``examined_max`` entries, or ``FILTERED_MAX`` if it is not given.
        """
        queue = self.queue(topic, queue_id)
        if queue is None:
            return Pulled(status=ReadStatus.NO_SUCH_QUEUE)
        start, end = queue.start, queue.end
        if offset < queue.start:
            return Pulled(
                status=ReadStatus.BEHIND_START, next_offset=queue.start, start=start, end=end
            )
        if offset >= queue.end:
            at_end = offset == queue.end
            status = ReadStatus.NOTHING_NEW if at_end else ReadStatus.BEYOND_END
            return Pulled(status=status, next_offset=queue.end, start=start, end=end)
        taken: list[tuple[int, QueueEntry]] = []
        total = 0
        next_offset = offset
        examined = count_max if codes is None else examined_max or FILTERED_MAX
        for entry in queue.entries(offset, examined):
            if codes is None or entry.tags in codes:
                total += entry.size
                # Take at least one message, however large, so that the reader gets past it.
                if taken and (total > bytes_max or len(taken) == count_max):
                    break
                taken.append((next_offset, entry))
            next_offset += 1
        return Pulled(
            status=ReadStatus.FOUND if taken else ReadStatus.NO_MATCH,
            messages=self._messages(taken),
            next_offset=next_offset,
            start=start,
            end=end,
        )

    def _messages(self, entries: list[tuple[int, QueueEntry]]) -> list[bytes]:
        read = self._store.reading.record
        return [
            visible_view(
                read(entry.log_offset, entry.size, entry.crc), queue_offset, entry.visible_at_ms
            )
            for queue_offset, entry in entries
            if entry.size and not self._is_lost(entry.log_offset)
        ]

    def stored(
        self, queue: ConsumeQueue, start: int, end: int, *, count_max: int, bytes_max: int
    ) -> tuple[list[VisibleMessage], int]:
        """Return visible messages of ``[start, end)`` as written, and the offset to read next.

        A message that exceeds ``bytes_max`` alone is returned anyway, as the only one.
        """
        found: list[VisibleMessage] = []
        total = 0
        read = self._store.reading.record
        for entry in queue.entries(start, min(count_max, max(end - start, 0))):
            total += entry.size
            if found and total > bytes_max:
                break
            if entry.size and not self._is_lost(entry.log_offset):
                record = read(entry.log_offset, entry.size, entry.crc)
                found.append(VisibleMessage(start, entry.visible_at_ms, record))
            start += 1
        return found, start

    def _is_lost(self, log_offset: int) -> bool:
        lost, log = self._store.lost, self._store.log
        # An entry whose copy is lost points at old bytes, which retention deletes before the entry.
        return bool(lost.ranges) and (log_offset < log.start or lost.hold(log_offset))

    def offset_at(self, topic: str, queue_id: int, visible_at_ms: int) -> int | None:
        """Return the first queue offset visible at or after this time."""
        queue = self.queue(topic, queue_id)
        return None if queue is None else queue.offset_at(visible_at_ms)

    # By log offset.

    def at(self, log_offset: int) -> Located | None:
        """Return the message that was first stored at this log offset; None if there is none."""
        store = self._store
        if not 0 <= log_offset < store.durable_end:
            return None
        # A half message that was carried forward keeps this offset, even below the log's start.
        row = store.table.row_at(log_offset)
        if row is not None:
            return self._half(store.core.row(row))
        return self._ordinary(log_offset)

    def _half(self, half: Half) -> Located | None:
        store = self._store
        if half.location < store.log.start or store.lost.hold(half.location):
            return None
        record = store.reading.record_of(half)
        if half.state is not State.COMMITTED or half.next_at_ms != NEVER:
            return Located(message=record, half=half, is_visible=False)
        queue = store.queues.get(half.queue)
        if queue is None:
            # The queue was deleted with its topic.
            return None
        from_offset = queue.offset_at(visible_from_ms(store, half))
        offset = queue.find(half.location, from_offset, limit=self._searched_max)
        if offset is None:
            # The queue starts after this message, so consumers cannot see it.
            return None
        visible_at_ms = queue.entries(offset, 1)[0].visible_at_ms
        message = visible_view(record, offset, visible_at_ms)
        return Located(message=message, half=half, is_visible=True)

    def _ordinary(self, log_offset: int) -> Located | None:
        """Return an ordinary message if both its record and its queue entry state this offset."""
        store = self._store
        head = store.log.peek(log_offset, RECORD_BYTES_MIN)
        size = int.from_bytes(head[:4], "big")
        # A copy of a half message states the offset of the original.
        is_here = int.from_bytes(head[LOG_OFFSET_PLACE], "big") == log_offset
        if not (is_here and RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX):
            return None
        try:
            _, queue_id, queue_offset, _, topic, _ = skim(store.log.peek(log_offset, size))
        except ProtocolViolation:
            return None
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.start <= queue_offset < queue.end:
            return None
        entry = queue.entries(queue_offset, 1)[0]
        if entry.log_offset != log_offset:
            return None
        record = store.reading.record(log_offset, entry.size, entry.crc)
        return Located(message=record, half=None, is_visible=True)

    # By key.

    def find(
        self,
        topic: str,
        key: str,
        *,
        limit: int,
        from_ms: int = 0,
        until_ms: int = NEVER,
        with_undecided: bool = False,
    ) -> list[bytes]:
        """Return visible messages of a topic with this key or unique key, newest first.

        ``with_undecided`` includes messages that may become visible. If very many messages have the
        key, only the newest are examined.
        """
        found: list[bytes] = []
        for located in islice(self.candidates(key), LOOKED_MAX if limit > 0 else 0):
            _, _, _, _, stored_topic, properties = skim(located.message)
            unique_key, keys, _ = index_facts(properties)
            if (
                (located.is_visible or (with_undecided and located.may_become_visible))
                and stored_topic == topic
                and (key == unique_key or key in keys)
                and from_ms <= stored_at_ms(located.message) <= until_ms
            ):
                found.append(located.message)
                if len(found) == limit:
                    break
        return found

    def find_transaction(self, transaction_id: str) -> Half | None:
        """Return the newest transaction with this id, even a decided one while the log has it."""
        table = self._store.table
        row = table.find(transaction_id)
        if row is not None:
            return table.get(row)
        for located in self.candidates(transaction_id):
            half = located.half
            if half is not None and table.identity(half)[0] == transaction_id:
                return half
        return None

    def candidates(self, key: str) -> Iterator[Located]:
        """Yield messages whose key, unique key or transaction id may be this one, newest first."""
        store = self._store
        high = store.durable_end
        seen: set[int] = set()
        # All messages without a key share the hash of the empty key, so it is not searched.
        for _ in range(CANDIDATES_MAX // _PAGE if key else 0):
            offsets = store.keys.find(key_hash(key), low=0, high=high, limit=_PAGE)
            for offset in offsets:
                # A copy states the offset of the original; the log may have both.
                stated = int.from_bytes(
                    store.log.peek(offset, RECORD_BYTES_MIN)[LOG_OFFSET_PLACE], "big"
                )
                located = None if stated in seen else self.at(stated)
                if located is not None:
                    seen.add(stated)
                    yield located
            if len(offsets) < _PAGE:
                break
            high = offsets[-1]
