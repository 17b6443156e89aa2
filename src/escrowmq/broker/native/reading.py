"""Native requests about messages and queues."""

from __future__ import annotations

import asyncio
import re

import numpy as np

from escrowmq.broker.native.calls import ROWS_ANY, Call, looks, offset_cursor
from escrowmq.broker.state.expiring import Uses
from escrowmq.broker.state.queues import ComputedQueue, Queues
from escrowmq.broker.state.reach import born_of
from escrowmq.broker.state.topics import Topics
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.message.filter import TAGS_MAX
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.message_views import queue_offset_of, stored_at_ms, visible_view
from escrowmq.protocol.message.properties import TRANSACTION_ID, find_property, index_facts
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.native.headers import (
    ListQueuesHeader,
    ReadMessagesHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.stored_headers import ReadStoredHeader
from escrowmq.store.log.blocks import LogBlocks
from escrowmq.store.reading.bulk_reading import read_stored
from escrowmq.store.reading.ends import end_at
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.store import Store

SEARCHED_MAX = 256
"""Most queues in a page that searches offsets by time, which takes some reads per queue."""

READ_BYTES_MAX = 4 * 1024 * 1024
"""Most stored bytes of the messages in one page; one larger message still fits."""

BLOCKS_KEPT_S = 10.0
"""How long blocks of the log stay in memory after the last bulk read."""

#: A tag code has at most 10 digits.
_CODE = re.compile(r"-?[0-9]{1,10}")
STORED_BYTES = 1024 * 1024
"""Default bytes in a page of messages as they were written: about 2 ms of work."""

STORED_BYTES_BESIDE = 256 * 1024
"""Most bytes in such a page while clients are sending, even if the request asks for more."""

_TRANSACTION_ID = TRANSACTION_ID.encode()


class NativeReading:
    """Handles questions about messages and queues."""

    def __init__(
        self, *, store: Store, reader: StoreReader, topics: Topics, uses: Uses, queues: Queues
    ) -> None:
        self._store = store
        self._views = queues.views
        self._catalog = store.catalog
        self._reader = reader
        self._topics = topics
        self._uses = uses
        self._blocks = LogBlocks(store.log)
        self._forgetting: asyncio.TimerHandle | None = None

    @looks(NativeCode.LIST_QUEUES)
    def queues(self, call: Call[ListQueuesHeader]) -> None:
        """List queues and their offsets."""
        header = call.header
        topics = set(header.topic.split(",")) - {""}
        self._uses.note_topics(topics & self._catalog.topics.keys())
        named = {(queue.topic, queue.queue_id) for queue in self._store.queues.values()}
        for kept in self._catalog.topics.values():
            one = kept.topic
            named.update((one.name, queue_id) for queue_id in range(one.queue_count))
        # A list of all queues has no views, because they hold no messages of their own.
        named.update((topic, 0) for topic in self._views.keys() & topics)
        wanted = (key for key in named if not topics or key[0] in topics)
        is_by_time = max(header.from_ms, header.until_ms, header.until_log) >= 0
        rows_max = SEARCHED_MAX if is_by_time else ROWS_ANY
        keys, cursor = call.page_of(wanted, tuple[str, int], rows_max)
        rows = [self._queue(key, header) for key in keys]
        call.answer_rows(rows, cursor=cursor, log_end=self._store.durable_end)

    def _queue(self, key: tuple[str, int], header: ListQueuesHeader) -> tuple[object, ...]:
        view = self._views.get(key[0])
        if view is not None:
            return (*key, view.start, view.end, 0)
        queue = self._reader.queue(*key)
        born = born_of(self._catalog.topics.get(key[0]))
        if queue is None:
            return (*key, 0, 0, born)
        start, end = queue.start, queue.end
        if header.from_ms >= 0:
            start = queue.offset_at(header.from_ms)
        if header.until_ms >= 0:
            end = max(queue.offset_at(header.until_ms), start)
        if header.until_log >= 0:
            then = end_at(self._store, self._reader, queue, header.until_log)
            end = max(min(then, end), start)
        return (*key, start, end, born)

    @looks(NativeCode.READ_MESSAGES)
    def read(self, call: Call[ReadMessagesHeader]) -> None:
        """Read visible messages of a queue, or messages of a system topic."""
        header = call.header
        view = self._views.get(header.topic)
        if view is not None:
            _read_view(call, view)
            return
        self._topics.named(header.topic)
        queue = self._reader.queue(header.topic, header.queue_id)
        if queue is None:
            call.answer_rows([], queue_start=0, queue_end=0)
            return
        start = max(offset_cursor(header.cursor, header.start), queue.start)
        end = queue.end if header.end < 0 else min(header.end, queue.end)
        found, next_start = self._reader.stored(
            queue, start, end, count_max=call.limit(), bytes_max=READ_BYTES_MAX
        )
        call.answer_rows(
            (
                message_row(
                    visible_view(one.record, one.queue_offset, one.visible_at_ms),
                    stored_at_ms(one.record),
                    is_visible=True,
                )
                for one in found
            ),
            cursor=str(next_start) if next_start < end else None,
            queue_start=queue.start,
            queue_end=queue.end,
        )

    @looks(NativeCode.READ_STORED)
    def read_stored(self, call: Call[ReadStoredHeader]) -> None:
        """Read visible messages of a queue as they were written."""
        header = call.header
        self._topics.named(header.topic)
        born = born_of(self._catalog.topics.get(header.topic))
        if header.born not in (-1, born):
            raise RequestRefused(
                "topic_remade",
                "the topic was deleted and created again; list its queues again",
                topic=header.topic,
                born=born,
            )
        queue = self._reader.queue(header.topic, header.queue_id)
        if queue is None:
            none = np.zeros(0, dtype=np.int64)
            call.answer_blocks(
                [none] * 4, memoryview(b""), next_start=0, queue_start=0, queue_end=0
            )
            return
        rows_max = call.spec.answer_rows_max
        found = read_stored(
            self._store,
            queue,
            max(header.start, queue.start),
            min(header.end, queue.end),
            count_max=min(header.limit, rows_max) if header.limit > 0 else rows_max,
            bytes_max=min(
                header.bytes_max or STORED_BYTES,
                STORED_BYTES_BESIDE if call.is_beside_senders else READ_BYTES_MAX,
            ),
            codes=_codes(header.tag_codes),
            blocks=self._blocks,
        )
        self._forget_blocks_later()
        entries = found.entries
        call.answer_blocks(
            [found.queue_offsets, entries["visible_at_ms"], entries["crc"], entries["size"]],
            found.records,
            next_start=found.next_offset,
            queue_start=queue.start,
            queue_end=queue.end,
        )

    def _forget_blocks_later(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        loop = asyncio.get_running_loop()
        self._forgetting = loop.call_later(BLOCKS_KEPT_S, self._blocks.forget)


def _read_view(call: Call[ReadMessagesHeader], view: ComputedQueue) -> None:
    """Answer with messages of a system topic; each is visible since it came to that topic."""
    header, queue_start, queue_end = call.header, view.start, view.end
    end = queue_end if header.end < 0 else min(header.end, queue_end)
    pulled = view.pull(
        max(offset_cursor(header.cursor, header.start), queue_start),
        count_max=call.limit(),
        bytes_max=READ_BYTES_MAX,
        codes=None,
    )
    found = (record for record in pulled.messages if queue_offset_of(record) < end)
    rows = [message_row(record, stored_at_ms(record), is_visible=True) for record in found]
    call.answer_rows(
        rows,
        cursor=str(pulled.next_offset) if pulled.next_offset < end else None,
        queue_start=queue_start,
        queue_end=queue_end,
    )


def _codes(text: str) -> list[int] | None:
    if not text:
        return None
    codes = text.split(",", TAGS_MAX)
    if not all(_CODE.fullmatch(code) for code in codes):
        raise ProtocolViolation("filter_malformed", "codes must be whole numbers", codes=text[:128])
    return [int(code) for code in codes]


def message_row(view: bytes, stored: int, *, is_visible: bool) -> tuple[object, ...]:
    """Return the ``MessageRow`` of a message as consumers see it; ``stored`` is its store time."""
    message = decode(view)
    unique_key, keys, tags = index_facts(message.properties)
    transaction_id = find_property(message.properties, _TRANSACTION_ID)
    return (
        message.topic,
        message.queue_id,
        message.queue_offset if is_visible else None,
        message.log_offset,
        offset_message_id(message.store_host, message.log_offset),
        unique_key,
        " ".join(keys),
        tags,
        message.body,
        message.properties.decode(errors="replace"),
        message.flag,
        message.sys_flag,
        message.born_at_ms,
        stored,
        message.stored_at_ms if is_visible else None,
        message.reconsume_times,
        transaction_id.decode(errors="replace") if transaction_id is not None else None,
    )
