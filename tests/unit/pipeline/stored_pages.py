"""Pages of stored messages, for tests of decoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from escrowmq.model.message import SentMessage
from escrowmq.pipeline.source import message_columns as c
from escrowmq.pipeline.source.decoding import decode_page
from escrowmq.pipeline.source.stored_records import MessageSource, StoredPage
from escrowmq.protocol.message.stored_message import encode, record_crc

PLACE = MessageSource("broker-a", "orders")
QUEUE_ID = 3
ALL = tuple(c.TYPES)
V4 = bytes(range(8))


def record_of(body: bytes = b"", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    """Return a message as the log stores it."""
    message = SentMessage(
        topic=PLACE.topic, queue_id=QUEUE_ID, body=body, properties=properties, sys_flag=sys_flag
    )
    return encode(message, 0, 0, 0, V4)


def page_of(found: list[bytes], first: int = 5, visible_at_ms: int = 1_000) -> StoredPage:
    """Return these messages as a page of a broker's answer."""
    count = len(found)
    return StoredPage(
        queue_id=np.full(count, QUEUE_ID, dtype=np.int32),
        queue_offset=np.arange(first, first + count, dtype=np.int64),
        visible_at_ms=np.arange(visible_at_ms, visible_at_ms + count, dtype=np.int64),
        crc=np.array([record_crc(record) for record in found], dtype=np.int64),
        size=np.array([len(record) for record in found], dtype=np.int32),
        data=memoryview(b"".join(found)),
    )


def decoded(
    page: StoredPage, columns: tuple[str, ...] = ALL, place: MessageSource = PLACE
) -> list[dict[str, Any]]:
    """Decode a page into a list of rows, with sorted properties."""
    rows: list[dict[str, Any]] = []
    for batch in decode_page(page, place, columns):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return [
        {**row, "properties": sorted(row["properties"])} if "properties" in row else row
        for row in rows
    ]
