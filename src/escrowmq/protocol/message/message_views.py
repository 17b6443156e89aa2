"""Views of a stored message: for consumers once it is visible, for administrators before.

The bytes in the log do not change; these functions patch a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct.error is a class

import msgspec

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.ids import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from escrowmq.protocol.message.properties import (
    PGROUP,
    PROPERTIES_BYTES_MAX,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    find_property,
    format_properties,
    join_properties,
)
from escrowmq.protocol.message.stored_message import (
    HOSTS,
    SYS_BORN_IPV6,
    SYS_COMMITTED,
    SYS_FLAG_AT,
    SYS_PREPARED,
    SYS_STORE_IPV6,
    SYS_TRANSACTION_MASK,
    decode,
    encode,
    malformed,
    skim,
)

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: Clients may not send to these.
SYSTEM_TOPICS = frozenset(
    {HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, SCHEDULE_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
OP_TAG = "d"

#: A record up to its prepared offset. A commit changes the fields marked "8x" and the sys flag.
_KEPT = tuple(Struct(f">20s8x8si{8 + born}s8x{store + 4}s8x") for born, store in HOSTS)
_COMMITTED = tuple(Struct(f">20sq8si{8 + born}sq{store + 4}sq") for born, store in HOSTS)
#: Queue offset, log offset and sys flag, at byte 20.
_PLACE = Struct(">qqi")
_TIME = Struct(">q")
_SIZE = Struct(">I")
_SYS_FLAG = Struct(">i")
_TEXT_SIZE = Struct(">h")
_BORN_HOST_AT = 48


def patch_committed(
    record: bytes, queue_offset: int, visible_at_ms: int, prepared_offset: int
) -> bytes:
    """Return a half message as consumers see it once it is committed."""
    try:
        start, log_offset, sys_flag, born, stored = _KEPT[0].unpack_from(record)
        hosts = sys_flag >> 4 & 3
        if hosts:
            start, log_offset, sys_flag, born, stored = _KEPT[hosts].unpack_from(record)
    except StructError:
        raise malformed("truncated", len(record)) from None
    sys_flag = sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED
    head: bytes = _COMMITTED[hosts].pack(
        start, queue_offset, log_offset, sys_flag, born, visible_at_ms, stored, prepared_offset
    )
    return head + record[len(head) :]


def visible_view(record: bytes, queue_offset: int, visible_at_ms: int) -> bytes:
    """Return a stored message as consumers see it at this offset of its queue.

    A half message is shown as committed, and a scheduled message with the time it became visible.
    Any other message is shown as written.
    """
    stated, log_offset, sys_flag = _PLACE.unpack_from(record, 20)
    if sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED:
        return patch_committed(record, queue_offset, visible_at_ms, log_offset)
    at = stored_at_place(sys_flag)
    if (stated, *_TIME.unpack_from(record, at)) == (queue_offset, visible_at_ms):
        return record
    return b"".join(
        (
            record[:20],
            _TIME.pack(queue_offset),
            record[28:at],
            _TIME.pack(visible_at_ms),
            record[at + 8 :],
        )
    )


def delivered_again(record: bytes, attempt: int) -> bytes:
    """Return a message as its consumer sees it at this attempt, the first of which is 1."""
    if attempt <= 1:
        return record
    _, _, sys_flag = _PLACE.unpack_from(record, 20)
    store_host_bytes = IPV6_HOST_BYTES if sys_flag & SYS_STORE_IPV6 else IPV4_HOST_BYTES
    at = stored_at_place(sys_flag) + _TIME.size + store_host_bytes
    (retries,) = _SYS_FLAG.unpack_from(record, at)
    again = min(retries + attempt - 1, 2**31 - 1)
    return b"".join((record[:at], _SYS_FLAG.pack(again), record[at + _SYS_FLAG.size :]))


def queue_offset_of(record: bytes) -> int:
    """Return the queue offset that a message states."""
    offset: int = _TIME.unpack_from(record, 20)[0]
    return offset


def stored_at_place(sys_flag: int) -> int:
    """Return the position of the store time in a record."""
    return 68 if sys_flag & SYS_BORN_IPV6 else 56


def stored_at_ms(record: bytes) -> int:
    """Return the store time of a record."""
    _, _, sys_flag = _PLACE.unpack_from(record, 20)
    stored: int = _TIME.unpack_from(record, stored_at_place(sys_flag))[0]
    return stored


def half_topic_view(
    record: bytes,
    queue_offset: int,
    *,
    topic: str = HALF_TOPIC,
    checks_sent: int = 0,
    stored_at_ms: int | None = None,
) -> bytes:
    """Return a half message as RocketMQ stores it: on the half topic or the parked topic."""
    half = decode(record)
    properties = half.properties
    if checks_sent:
        # If a name occurs twice, readers use the last value.
        counted = join_properties(
            properties, format_properties({TRANSACTION_CHECK_TIMES: str(checks_sent)})
        )
        properties = counted if len(counted) <= PROPERTIES_BYTES_MAX else properties
    return encode(
        msgspec.structs.replace(half, topic=topic, queue_id=0, properties=properties),
        queue_offset,
        half.log_offset,
        half.stored_at_ms if stored_at_ms is None else stored_at_ms,
        half.store_host,
        prepared_offset=half.prepared_offset,
    )


def op_message(
    rows: Iterable[int], queue_offset: int, log_offset: int, at_ms: int, store_host: bytes
) -> bytes:
    """Return the op message that names the half messages of a decision, as RocketMQ 5 writes it."""
    message = SentMessage(
        topic=OP_TOPIC,
        queue_id=0,
        body="".join(f"{row}," for row in rows).encode(),
        properties=format_properties({TAGS: OP_TAG}),
        born_at_ms=at_ms,
        born_host=store_host,
    )
    return encode(message, queue_offset, log_offset, at_ms, store_host)


def born_host(record: bytes) -> bytes:
    """Return the packed host that sent the message."""
    (sys_flag,) = _SYS_FLAG.unpack_from(record, SYS_FLAG_AT)
    size = IPV6_HOST_BYTES if sys_flag & SYS_BORN_IPV6 else IPV4_HOST_BYTES
    return record[_BORN_HOST_AT : _BORN_HOST_AT + size]


def back_check_view(record: bytes, group: str, number: int) -> bytes:
    """Return a half message as the body of its producer's ``number``-th back-check.

    Listeners read the number. Stock clients drop a check that does not name their group.
    """
    _, _, _, sys_flag, _, properties = skim(record)
    added = {TRANSACTION_CHECK_TIMES: str(number)}
    if find_property(properties, PGROUP.encode()) is None:
        added[PGROUP] = group
    told = join_properties(properties, format_properties(added))
    if len(told) > PROPERTIES_BYTES_MAX:
        told = properties
    kept_bytes = len(record) - len(properties)
    return b"".join(
        (
            _SIZE.pack(kept_bytes + len(told)),
            record[_SIZE.size : SYS_FLAG_AT],
            _SYS_FLAG.pack(sys_flag & ~SYS_TRANSACTION_MASK),
            record[SYS_FLAG_AT + _SYS_FLAG.size : kept_bytes - _TEXT_SIZE.size],
            _TEXT_SIZE.pack(len(told)),
            told,
        )
    )
