"""Messages in columns, as the broker builds them from large requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from escrowmq.model.message import SentMessage
from escrowmq.model.message_columns import MessageColumns, QueueOfColumns, Slices
from escrowmq.protocol.message.properties import tags_code


def columns_of(
    messages: Sequence[SentMessage], added: Mapping[tuple[str, int], bytes] | None = None
) -> MessageColumns:
    """Return the messages in columns; ``added`` holds extra properties for each queue."""
    queues = list(dict.fromkeys((one.topic, one.queue_id) for one in messages))
    return MessageColumns(
        queues=tuple(QueueOfColumns(*queue, (added or {}).get(queue, b"")) for queue in queues),
        queue_of=np.array([queues.index((one.topic, one.queue_id)) for one in messages]),
        bodies=slices([one.body for one in messages]),
        properties=slices([one.properties for one in messages]),
        flags=np.array([one.flag for one in messages]),
        sys_flags=np.array([one.sys_flag for one in messages]),
        born_at_ms=np.array([one.born_at_ms for one in messages]),
        born_host=messages[0].born_host,
        unique=[crc32(one.unique_key.encode()) for one in messages],
        keys=[crc32(key.encode()) for one in messages for key in one.keys],
        keyed=[number for number, one in enumerate(messages) for _ in one.keys],
        tags=[tags_code(one.tags) for one in messages],
        deliver_after_ms=[one.deliver_after_ms for one in messages],
    )


def slices(values: list[bytes]) -> Slices:
    """Return slices of a buffer that has other bytes before and after the values."""
    ends = np.cumsum([3, *map(len, values)])
    return Slices(b"...%b..." % b"".join(values), ends)
