"""Our own questions about messages and queues."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.broker.own_calls import Call, key_cursor, keys_after, offset_cursor, own_questions
from escrowmq.broker.reach import born_of
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.filter import TAGS_MAX
from escrowmq.protocol.ids import offset_message_id
from escrowmq.protocol.message_views import stored_at_ms, visible_view
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_stored import ReadStoredHeader
from escrowmq.protocol.properties import TRANSACTION_ID, find_property, index_facts
from escrowmq.protocol.stored_message import decode
from escrowmq.store.bulk_reading import read_stored
from escrowmq.store.ends import end_at
from escrowmq.store.log_blocks import LogBlocks

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import (
        ListQueuesHeader,
        ReadMessagesHeader,
    )

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


class OwnReading:
    """Handles questions about messages and queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._blocks = LogBlocks(broker.store.log)
        self._forgetting: asyncio.TimerHandle | None = None

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return own_questions(
            self._broker,
            {
                OwnCode.LIST_QUEUES: self.queues,
                OwnCode.READ_MESSAGES: self.read,
                OwnCode.READ_STORED: self.read_stored,
            },
        )

    def queues(self, call: Call[ListQueuesHeader]) -> None:
        """List queues and their offsets."""
        broker, header = self._broker, call.header
        topics = set(header.topic.split(",")) - {""}
        broker.expiring.note_topics(topics & broker.catalog.topics.keys())
        named = {(queue.topic, queue.queue_id) for queue in broker.store.queues.values()}
        for kept in broker.catalog.topics.values():
            one = kept.topic
            named.update((one.name, queue_id) for queue_id in range(one.queue_count))
        wanted = (key for key in named if not topics or key[0] in topics)
        is_by_time = max(header.from_ms, header.until_ms, header.until_log) >= 0
        keys, cursor = key_cursor(
            keys_after(wanted, header.cursor, tuple[str, int]),
            call.limit(SEARCHED_MAX) if is_by_time else call.limit(),
        )
        rows = [self._queue(key, header) for key in keys]
        call.answer_rows(rows, cursor=cursor, log_end=broker.store.settled)

    def _queue(self, key: tuple[str, int], header: ListQueuesHeader) -> tuple[object, ...]:
        queue = self._broker.reader.queue(*key)
        born = born_of(self._broker.catalog.topics.get(key[0]))
        if queue is None:
            return (*key, 0, 0, born)
        start, end = queue.start, queue.end
        if header.from_ms >= 0:
            start = queue.offset_at(header.from_ms)
        if header.until_ms >= 0:
            end = max(queue.offset_at(header.until_ms), start)
        if header.until_log >= 0:
            then = end_at(self._broker.store, self._broker.reader, queue, header.until_log)
            end = max(min(then, end), start)
        return (*key, start, end, born)

    def read(self, call: Call[ReadMessagesHeader]) -> None:
        """Read visible messages of a queue."""
        header, broker = call.header, self._broker
        broker.topics.named(header.topic)
        queue = broker.reader.queue(header.topic, header.queue_id)
        if queue is None:
            call.answer_rows([], queue_start=0, queue_end=0)
            return
        start = max(offset_cursor(header.cursor, header.start), queue.start)
        end = queue.end if header.end < 0 else min(header.end, queue.end)
        found, next_start = broker.reader.stored(
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

    def read_stored(self, call: Call[ReadStoredHeader]) -> None:
        """Read visible messages of a queue as they were written."""
        header, broker = call.header, self._broker
        broker.topics.named(header.topic)
        born = born_of(broker.catalog.topics.get(header.topic))
        if header.born not in (-1, born):
            raise RequestRefused(
                "topic_remade",
                "it was deleted and made again: list its queues again",
                topic=header.topic,
                born=born,
            )
        queue = broker.reader.queue(header.topic, header.queue_id)
        if queue is None:
            none = np.zeros(0, dtype=np.int64)
            call.answer_blocks(
                [none] * 4, memoryview(b""), next_start=0, queue_start=0, queue_end=0
            )
            return
        rows_max = call.spec.answer_rows_max
        found = read_stored(
            broker.store,
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


def _codes(text: str) -> list[int] | None:
    if not text:
        return None
    codes = text.split(",", TAGS_MAX)
    if not all(_CODE.fullmatch(code) for code in codes):
        raise ProtocolViolation("filter_malformed", "codes are whole numbers", codes=text[:128])
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
