"""Encode many messages at once from columns, with the same bytes as ``stored_message``.

Only checksums and slices of bytes are computed per message. Both hosts must be IPv4.
"""

from __future__ import annotations

from itertools import chain
from zlib import crc32

import numpy as np

from escrowmq.model.message_columns import MessageColumns, Numbers
from escrowmq.protocol.message.stored_message import CRC_MASK, HOSTS, SYS_SENT, topic_field

#: The layout before the body, by the two bits that say which hosts are IPv6.
HEADS = tuple(
    np.dtype(
        [
            ("size", ">u4"),
            ("magic", ">u4"),
            ("body_crc", ">u4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("log_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_at_ms", ">i8"),
            ("born_host", f"V{born}"),
            ("stored_at_ms", ">i8"),
            ("store_host", f"V{store}"),
            ("reconsume_times", ">i4"),
            ("prepared_offset", ">i8"),
            ("body_bytes", ">u4"),
        ]
    )
    for born, store in HOSTS
)
_HEAD = HEADS[0]
_HEAD_BYTES = _HEAD.itemsize


def encode_columns(
    messages: MessageColumns,
    first_queue_offset: int,
    at: tuple[int, int],
    store_host: bytes,
    bits: int,
) -> tuple[chain[bytes], Numbers, list[int], Numbers]:
    """Encode messages; return pieces, sizes, checksums and log offsets, as ``encode_many`` does."""
    count, queues, queue_of = len(messages), messages.queues, messages.queue_of
    first_offset, stored_at_ms = at
    topics = [topic_field(queue.topic) for queue in queues]
    body_bytes, property_bytes = messages.bodies.lengths, messages.property_bytes
    heads = np.zeros(count, dtype=_HEAD)
    sizes = np.array([size for _, _, size in topics])[queue_of] + body_bytes + property_bytes
    log_offsets = first_offset + np.cumsum(sizes) - sizes
    bodies = messages.bodies.each()
    heads["size"] = sizes
    heads["magic"] = np.array([magic for magic, _, _ in topics])[queue_of]
    heads["body_crc"] = np.fromiter(map(crc32, bodies), dtype=np.uint32, count=count) & CRC_MASK
    heads["queue_id"] = np.array([queue.queue_id for queue in queues])[queue_of]
    heads["flag"] = messages.flags
    heads["queue_offset"] = np.arange(first_queue_offset, first_queue_offset + count)
    heads["log_offset"] = log_offsets
    heads["sys_flag"] = messages.sys_flags & SYS_SENT | bits
    heads["born_at_ms"] = messages.born_at_ms
    heads["born_host"] = np.void(messages.born_host)
    heads["stored_at_ms"] = stored_at_ms
    heads["store_host"] = np.void(store_host)
    heads["body_bytes"] = body_bytes
    packed = heads.tobytes()
    head_pieces = [packed[at : at + _HEAD_BYTES] for at in range(0, len(packed), _HEAD_BYTES)]
    lengths = property_bytes.astype(">i2").tobytes()
    rests = [
        b"".join((topics[queue][1], lengths[at : at + 2], own, queues[queue].more_properties))
        for queue, at, own in zip(
            queue_of.tolist(), range(0, 2 * count, 2), messages.properties.each(), strict=True
        )
    ]
    crcs = list(map(crc32, rests, map(crc32, head_pieces)))
    pieces = chain.from_iterable(zip(head_pieces, bodies, rests, strict=True))
    return pieces, sizes, crcs, log_offsets
