"""RocketMQ's layout of a stored message, used in the log, in pull bodies and in check bodies.

All integers are big-endian. A host is 8 bytes (IPv4) or 20 bytes (IPv6) with its port, and two
bits of ``sys_flag`` say which. Positions after the first host therefore vary.

    ====  ======================================================  ===============
      at  field                                                   bytes
    ====  ======================================================  ===============
       0  size of the whole record                                4
       4  magic: v1, or v2 for a topic longer than 127 bytes      4
       8  CRC-32 of the body, highest bit cleared                 4
      12  queue id                                                4
      16  flag, set by the user                                   4
      20  queue offset                                            8
      28  log offset                                              8
      36  sys flag                                                4
      40  born at                                                 8
      48  born host                                               8 or 20
      ..  stored at                                               8
      ..  store host                                              8 or 20
      ..  reconsume times                                         4
      ..  prepared offset                                         8
      ..  body size, body                                         4 + n
      ..  topic size, topic                                       1 (v2: 2) + n
      ..  properties size, properties                             2 + n
    ====  ======================================================  ===============

``limits.py`` limits the messages that we write. Decoding accepts any message that fits the layout,
because another broker may have other limits. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct.error is a class
from typing import Any
from zlib import crc32

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.ids import HOST_BYTES, IPV4_HOST_BYTES, IPV6_HOST_BYTES
from escrowmq.protocol.message.limits import CACHED_TOPICS_MAX, GROUP_TOPIC_CHARS_MAX
from escrowmq.protocol.message.properties import PROPERTIES_BYTES_MAX

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

SYS_COMPRESSED = 0x1
SYS_PREPARED = 0x4
SYS_COMMITTED = 0x8
SYS_ROLLED_BACK = 0xC
SYS_TRANSACTION_MASK = 0xC
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20

_SYS_IPV6 = SYS_BORN_IPV6 | SYS_STORE_IPV6
#: Bits that the sender sets; ``lay_out`` sets the others.
SYS_SENT = ~(SYS_TRANSACTION_MASK | _SYS_IPV6)
CRC_MASK = 0x7FFF_FFFF
#: Sizes in the layout are signed.
_V1_TOPIC_BYTES_MAX = 127
_V2_TOPIC_BYTES_MAX = 32_767

#: Where a record states its own log offset, and where its sys flag is.
LOG_OFFSET_PLACE = slice(28, 36)
SYS_FLAG_AT = 36

# The two IPv6 bits, ``sys_flag >> 4 & 3``, are the index into these tuples.
HOSTS = ((8, 8), (20, 8), (8, 20), (20, 20))
_IPV6_EXTRA_BYTES = (0, 12, 12, 24)
#: The fields before the body.
_HEADS = tuple(Struct(f">IIIiiqqiq{born}sq{store}siqI") for born, store in HOSTS)
_HEAD_BYTES = _HEADS[0].size
#: Size of a v1 message with IPv4 hosts, without body, topic and properties.
_FIXED_BYTES = _HEAD_BYTES + 3
#: Size, magic, queue id, queue offset, sys flag and, if both hosts are IPv4, the body's size.
_unpack_skimmed = Struct(">II4xi4xq8xi44xI").unpack_from
_BODY_SIZE = Struct(">I")
#: The fields before the body with IPv4 hosts. One field of 28 bytes has the values that all
#: messages of a request share: store time, store host, reconsume times 0, prepared offset 0.
_FIRST_SENT_HEAD = Struct(">IIIiiqqiq8s28sI")
_SAME = Struct(">q8siq")
#: Body CRC, sys flag and, if both hosts are IPv4, the body's size, at byte 8.
_VOUCHED = Struct(">I24xi44xI")

_pack_ipv4_head = _HEADS[0].pack
_pack_text_size = Struct(">h").pack

#: By topic: magic, size-prefixed topic, and size of a message without body and properties.
_topic_fields: dict[str, tuple[int, bytes, int]] = {}
#: Topic by size-prefixed topic.
_topic_names: dict[bytes, str] = {}


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of the layout, in order."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes


_HEAD_FIELDS = StoredMessage.__struct_fields__[:14]


def encode(
    message: SentMessage | StoredMessage,
    *place: Any,  # noqa: ANN401 - see lay_out
    **more: Any,  # noqa: ANN401 - see lay_out
) -> bytes:
    """Encode a message that passed ``limits.validate``; takes the arguments of ``lay_out``."""
    head, rest, _, _ = lay_out(message, *place, **more)
    return b"".join((head, message.body, rest))


def lay_out(  # noqa: PLR0917 - positional, because this is called for each message.
    message: SentMessage | StoredMessage,
    queue_offset: int,
    log_offset: int,
    stored_at_ms: int,
    store_host: bytes,
    transaction_bits: int = 0,
    prepared_offset: int = 0,
) -> tuple[bytes, bytes, int, int]:
    """Return the bytes before the body, the bytes after it, the record's size, and ``record_crc``.

    The sender's transaction bits and host bits are ignored.
    """
    body = message.body
    properties = message.properties
    born_host = message.born_host
    magic, named, fixed_bytes = topic_field(message.topic)
    sys_flag = message.sys_flag & SYS_SENT | transaction_bits
    pack_head = _pack_ipv4_head
    if len(born_host) != IPV4_HOST_BYTES or len(store_host) != IPV4_HOST_BYTES:
        sys_flag |= _ipv6_bits(born_host, store_host)
        pack_head = _HEADS[sys_flag >> 4 & 3].pack
        fixed_bytes += _IPV6_EXTRA_BYTES[sys_flag >> 4 & 3]
    body_bytes = len(body)
    properties_bytes = len(properties)
    size = fixed_bytes + body_bytes + properties_bytes
    head = pack_head(
        size,
        magic,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        queue_offset,
        log_offset,
        sys_flag,
        message.born_at_ms,
        born_host,
        stored_at_ms,
        store_host,
        message.reconsume_times,
        prepared_offset,
        body_bytes,
    )
    rest = named + _pack_text_size(properties_bytes) + properties
    return head, rest, size, crc32(rest, crc32(head))


def encode_many(
    messages: Iterable[SentMessage],
    queue_offsets: Iterable[int],
    at: tuple[int, int],
    store_host: bytes,
    transaction_bits: int = 0,
) -> tuple[list[bytes], list[int], list[int], list[int]]:
    """Encode consecutive messages, starting at log offset and store time ``at``.

    Return pieces that join to the records, and each record's size, checksum (see ``record_crc``)
    and log offset. This is an optimized loop over ``encode``: a broker spends most of the time
    for a batch here.
    """
    log_offset, stored_at_ms = first_offset, _ = at
    is_ipv4_store = len(store_host) == IPV4_HOST_BYTES
    same = _SAME.pack(stored_at_ms, store_host[:IPV4_HOST_BYTES], 0, 0)
    pieces: list[bytes] = []
    sizes: list[int] = []
    crcs: list[int] = []
    topic, magic, fixed_bytes = "", 0, 0
    #: The bytes between body and properties, by the size of the properties.
    middles: dict[int, bytes] = {}
    pack_head, kept, masked, crc_of = _FIRST_SENT_HEAD.pack, SYS_SENT, CRC_MASK, crc32
    for message, queue_offset in zip(messages, queue_offsets, strict=True):
        born_host = message.born_host
        if is_ipv4_store and len(born_host) == IPV4_HOST_BYTES and not message.reconsume_times:
            if message.topic != topic:
                topic, middles = message.topic, {}
                magic, _, fixed_bytes = topic_field(topic)
            body, properties = message.body, message.properties
            body_bytes, properties_bytes = len(body), len(properties)
            size = fixed_bytes + body_bytes + properties_bytes
            head = pack_head(
                size,
                magic,
                crc_of(body) & masked,
                message.queue_id,
                message.flag,
                queue_offset,
                log_offset,
                message.sys_flag & kept | transaction_bits,
                message.born_at_ms,
                born_host,
                same,
                body_bytes,
            )
            middle = middles.get(properties_bytes)
            if middle is None:
                middle = topic_field(topic)[1] + _pack_text_size(properties_bytes)
                middles[properties_bytes] = middle
            rest = middle + properties
            pieces += (head, body, rest)
            crcs.append(crc_of(rest, crc_of(head)))
        else:
            head, rest, size, crc = lay_out(
                message, queue_offset, log_offset, stored_at_ms, store_host, transaction_bits
            )
            pieces += (head, message.body, rest)
            crcs.append(crc)
        sizes.append(size)
        log_offset += size
    return pieces, sizes, crcs, list(accumulate(sizes[:-1], initial=first_offset))


def record_crc(record: bytes | bytearray | memoryview) -> int | None:
    """Return the CRC-32 of a record without its body, or None if the body's own CRC-32 is wrong.

    The record contains the CRC-32 of its body. The two checksums cover every byte once.
    """
    try:
        body_crc, sys_flag, body_bytes = _VOUCHED.unpack_from(record, 8)
        head_bytes = _HEAD_BYTES
        if sys_flag & _SYS_IPV6:
            head_bytes += _IPV6_EXTRA_BYTES[sys_flag >> 4 & 3]
            (body_bytes,) = _BODY_SIZE.unpack_from(record, head_bytes - 4)
    except StructError:
        return None
    body_end = head_bytes + body_bytes
    if crc32(record[head_bytes:body_end]) & CRC_MASK != body_crc:
        return None
    return crc32(record[body_end:], crc32(record[:head_bytes]))


def encoded_size(message: SentMessage, store_host_size: int) -> int:
    """Return the size of the message after ``encode``."""
    fixed_bytes = topic_field(message.topic)[2]
    ipv6_extra_bytes = len(message.born_host) + store_host_size - 2 * IPV4_HOST_BYTES
    return fixed_bytes + ipv6_extra_bytes + len(message.body) + len(message.properties)


def decode(record: bytes | memoryview, *, check_body: bool = True) -> StoredMessage:
    """Decode a record that contains exactly one message."""
    data = bytes(record)
    message = _decode_at(data, 0, check_body=check_body)
    if message.size != len(data):
        raise malformed("bytes after the message", message.size, bytes=len(data) - message.size)
    return message


def decode_many(data: bytes | memoryview) -> list[StoredMessage]:
    """Decode consecutive messages, as in the body of a pull."""
    data = bytes(data)
    messages = []
    at = 0
    while at < len(data):
        message = _decode_at(data, at, check_body=True)
        messages.append(message)
        at += message.size
    return messages


def skim(record: bytes | memoryview, at: int = 0) -> tuple[int, int, int, int, str, bytes]:
    """Return size, queue id, queue offset, sys flag, topic and properties of the message at ``at``.

    This checks that the message is complete and that its parts add up to its size. It neither
    copies nor checks the body.
    """
    try:
        size, magic, queue_id, queue_offset, sys_flag, body_bytes = _unpack_skimmed(record, at)
        topic_at = at + _HEAD_BYTES + body_bytes
        if sys_flag & _SYS_IPV6:
            topic_at = _topic_at(record, at, sys_flag)
    except StructError:
        raise malformed("truncated", len(record)) from None
    end = at + size
    if end > len(record):
        raise malformed("truncated", len(record), size=size)
    rest = record[topic_at:end]
    # From here on all positions are in this short copy, so they cannot leave the message.
    tail = rest if type(rest) is bytes else bytes(rest)
    try:
        if magic == MAGIC_V1:
            topic_end = 1 + tail[0]
        elif magic == MAGIC_V2:
            topic_end = 2 + (tail[0] << 8 | tail[1])
        else:
            raise malformed("neither magic", at + 4, magic=magic)
        properties_bytes = tail[topic_end] << 8 | tail[topic_end + 1]
    except IndexError:
        raise malformed("body or topic passes its end", end, size=size) from None
    properties = tail[topic_end + 2 :]
    if properties_bytes != len(properties) or properties_bytes > PROPERTIES_BYTES_MAX:
        at = topic_at + topic_end
        raise malformed("properties do not fit", at, size=properties_bytes, fit=len(properties))
    try:
        topic = _topic_names[tail[:topic_end]]
    except KeyError:
        topic = _read_topic(tail[:topic_end], magic, topic_at)
    return size, queue_id, queue_offset, sys_flag, topic, properties


def _ipv6_bits(born_host: bytes, store_host: bytes) -> int:
    assert len(born_host) in HOST_BYTES
    assert len(store_host) in HOST_BYTES
    born_bit = SYS_BORN_IPV6 if len(born_host) == IPV6_HOST_BYTES else 0
    store_bit = SYS_STORE_IPV6 if len(store_host) == IPV6_HOST_BYTES else 0
    return born_bit | store_bit


def topic_field(topic: str) -> tuple[int, bytes, int]:
    """Return magic, size-prefixed topic, and size of a message without body and properties."""
    try:
        return _topic_fields[topic]
    except KeyError:
        return _remember_topic_field(topic)


def _remember_topic_field(topic: str) -> tuple[int, bytes, int]:
    raw = topic.encode()
    if len(raw) <= _V1_TOPIC_BYTES_MAX:
        field = (MAGIC_V1, bytes((len(raw),)) + raw, _FIXED_BYTES + len(raw))
    else:
        field = (MAGIC_V2, _pack_text_size(len(raw)) + raw, _FIXED_BYTES + 1 + len(raw))
    if len(_topic_fields) >= CACHED_TOPICS_MAX:
        _topic_fields.clear()
    _topic_fields[topic] = field
    return field


def _decode_at(data: bytes, at: int, *, check_body: bool) -> StoredMessage:
    _, _, _, sys_flag, topic, properties = skim(data, at)
    head = _HEADS[sys_flag >> 4 & 3]
    *values, body_bytes = head.unpack_from(data, at)
    fields = dict(zip(_HEAD_FIELDS, values, strict=True))
    body_at = at + head.size
    body = data[body_at : body_at + body_bytes]
    if check_body and crc32(body) & CRC_MASK != fields["body_crc"]:
        raise malformed("body is damaged", body_at, body_crc=fields["body_crc"])
    return StoredMessage(**fields, body=body, topic=topic, properties=properties)


def _topic_at(record: bytes | memoryview, at: int, sys_flag: int) -> int:
    body_at: int = at + _HEADS[sys_flag >> 4 & 3].size
    (body_bytes,) = _BODY_SIZE.unpack_from(record, body_at - _BODY_SIZE.size)
    return body_at + int(body_bytes)


def _read_topic(field: bytes, magic: int, at: int) -> str:
    size_bytes, bytes_max = (
        (1, _V1_TOPIC_BYTES_MAX) if magic == MAGIC_V1 else (2, _V2_TOPIC_BYTES_MAX)
    )
    raw = field[size_bytes:]
    if not 1 <= len(raw) <= bytes_max:
        raise malformed("topic size out of range", at, size=len(raw), max=bytes_max)
    try:
        topic = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed("topic is not UTF-8", at + size_bytes + error.start) from None
    if len(_topic_names) >= CACHED_TOPICS_MAX:
        _topic_names.clear()
    if len(topic) <= GROUP_TOPIC_CHARS_MAX:
        _topic_names[field] = topic
    return topic


def malformed(message: str, at: int, **fields: object) -> ProtocolViolation:
    """Return the error for bytes that are not a stored message."""
    return ProtocolViolation("stored_message_malformed", message, at=at, **fields)
