"""A message as RocketMQ lays it out in its log, in pull bodies and in check bodies.

All integers are big-endian.  A host is 8 bytes (IPv4) or 20 bytes (IPv6), port included, and two
bits of ``sys_flag`` say which; positions after the first host therefore vary.

    ====  ======================================================  ===============
      at  field                                                   bytes
    ====  ======================================================  ===============
       0  size of all of this                                     4
       4  magic: v1, or v2 for a topic longer than 127 bytes      4
       8  CRC-32 of the body without its highest bit              4
      12  queue id                                                4
      16  flag, the user's                                        4
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

``validate`` holds what we take to the limits; reading accepts whatever fits the layout, because
another broker may have been set up with other limits.  Nothing here does I/O.
"""

from __future__ import annotations

import re
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, whatever its case
from zlib import crc32

import msgspec

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.model.message import Message

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_PREPARED = 0x4
SYS_COMMITTED = 0x8
SYS_ROLLED_BACK = 0xC
SYS_TRANSACTION_MASK = 0xC
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX = 32_767
TOPIC_CHARS_MAX = 127
#: For the topics that the broker makes itself, of a consumer group's name.
GROUP_TOPIC_CHARS_MAX = 255
GROUP_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")
#: Names kept by each cache below; a full cache is emptied and fills again.
CACHED_TOPICS_MAX = 16_384

_IPV4_BYTES = 8
_IPV6_BYTES = 20
_HOST_BYTES = (_IPV4_BYTES, _IPV6_BYTES)
#: What encode sets itself.
_SYS_OURS = SYS_TRANSACTION_MASK | SYS_BORN_IPV6 | SYS_STORE_IPV6
_CRC_MASK = 0x7FFF_FFFF
_V1_TOPIC_BYTES_MAX = 127


def _head(born_bytes: int, store_bytes: int) -> Struct:
    return Struct(f">IIIiiqqiq{born_bytes}sq{store_bytes}siqI")


#: Everything before the body, by the two IPv6 bits: ``sys_flag >> 4 & 3``.
_HEADS = (_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20))
_pack_ipv4_head = _HEADS[0].pack
_HEAD_BYTES = _HEADS[0].size
_IPV6_EXTRA = (0, 12, 12, 24)
#: A message without body, topic and properties, v1 and IPv4.
_FIXED_BYTES = _HEAD_BYTES + 3

_LENGTH = Struct(">h")
_pack_length = _LENGTH.pack
_unpack_length = _LENGTH.unpack_from
_SIZE = Struct(">I")
#: Size, magic, queue id, queue offset, sys flag and, if both hosts are IPv4, the body's size.
_SKIMMED = Struct(">II4xi4xq8xi44xI")
_unpack_skimmed = _SKIMMED.unpack_from

_topic_fields: dict[str, tuple[int, bytes, int]] = {}
_topic_names: dict[bytes, str] = {}


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Every field of the layout, in its order."""

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


def encode(
    message: Message,
    queue_offset: int,
    log_offset: int,
    stored_at_ms: int,
    store_host: bytes,
    transaction_bits: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Lay out a message that passed ``validate``."""
    body = message.body
    properties = message.properties
    born_host = message.born_host
    try:
        magic, topic_field, fixed_bytes = _topic_fields[message.topic]
    except KeyError:
        magic, topic_field, fixed_bytes = _remember_topic_field(message.topic)
    sys_flag = message.sys_flag & ~_SYS_OURS | transaction_bits
    pack_head = _pack_ipv4_head
    if len(born_host) != _IPV4_BYTES or len(store_host) != _IPV4_BYTES:
        sys_flag |= _ipv6_bits(born_host, store_host)
        pack_head = _HEADS[sys_flag >> 4 & 3].pack
        fixed_bytes += _IPV6_EXTRA[sys_flag >> 4 & 3]
    body_bytes = len(body)
    properties_bytes = len(properties)
    return b"".join(
        (
            pack_head(
                fixed_bytes + body_bytes + properties_bytes,
                magic,
                crc32(body) & _CRC_MASK,
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
            ),
            body,
            topic_field,
            _pack_length(properties_bytes),
            properties,
        )
    )


def encoded_size(message: Message, store_host_size: int) -> int:
    """How many bytes ``encode`` makes of it."""
    try:
        fixed_bytes = _topic_fields[message.topic][2]
    except KeyError:
        fixed_bytes = _remember_topic_field(message.topic)[2]
    hosts_bytes = len(message.born_host) + store_host_size
    return fixed_bytes + hosts_bytes - 2 * _IPV4_BYTES + len(message.body) + len(message.properties)


def skim(record: bytes | memoryview, at: int = 0) -> tuple[int, int, int, int, str, bytes]:
    """Size, queue id, queue offset, sys flag, topic and properties of the message at ``at``.

    Checks that the message is whole and its parts add up, but neither copies nor checks the body.
    """
    try:
        size, magic, queue_id, queue_offset, sys_flag, body_bytes = _unpack_skimmed(record, at)
        topic_at = at + _HEAD_BYTES + body_bytes
        if sys_flag & 0x30:
            topic_at = _topic_at(record, at, sys_flag)
        if magic == MAGIC_V1:
            topic_bytes = record[topic_at]
            topic_at += 1
            if topic_bytes > _V1_TOPIC_BYTES_MAX:
                raise _malformed("topic size is negative", topic_at - 1)
        elif magic == MAGIC_V2:
            (topic_bytes,) = _unpack_length(record, topic_at)
            topic_at += 2
        else:
            raise _malformed("unknown magic", at + 4, magic=magic)
        properties_at = topic_at + topic_bytes + 2
        (properties_bytes,) = _unpack_length(record, properties_at - 2)
    except (StructError, IndexError):
        raise _malformed("truncated", len(record)) from None
    if topic_bytes < 1 or properties_bytes < 0:
        raise _malformed("topic or properties size out of range", topic_at)
    end = properties_at + properties_bytes
    if end != at + size:
        raise _malformed("parts do not add up to its size", at, size=size, parts=end - at)
    if end > len(record):
        raise _malformed("truncated", len(record), size=size)
    topic_raw = bytes(record[topic_at : properties_at - 2])
    try:
        topic = _topic_names[topic_raw]
    except KeyError:
        topic = _remember_topic_name(topic_raw, topic_at)
    return size, queue_id, queue_offset, sys_flag, topic, bytes(record[properties_at:end])


def patch_committed(
    record: bytes, queue_offset: int, visible_at_ms: int, prepared_offset: int
) -> bytes:
    """Show a stored half message as its consumers see it once it is committed."""
    patched = bytearray(record)
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(record, 36)
        stored_at, prepared_at = _PATCHED_AT[sys_flag >> 4 & 3]
        _OFFSET.pack_into(patched, 20, queue_offset)
        _SYS_FLAG.pack_into(patched, 36, sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED)
        _OFFSET.pack_into(patched, stored_at, visible_at_ms)
        _OFFSET.pack_into(patched, prepared_at, prepared_offset)
    except StructError:
        raise _malformed("truncated", len(record)) from None
    return bytes(patched)


_SYS_FLAG = Struct(">i")
_OFFSET = Struct(">q")
#: Where "stored at" and "prepared offset" are, by the two IPv6 bits.
_PATCHED_AT = ((56, 76), (68, 88), (56, 88), (68, 100))


def _ipv6_bits(born_host: bytes, store_host: bytes) -> int:
    assert len(born_host) in _HOST_BYTES
    assert len(store_host) in _HOST_BYTES
    born_bit = SYS_BORN_IPV6 if len(born_host) == _IPV6_BYTES else 0
    return born_bit | (SYS_STORE_IPV6 if len(store_host) == _IPV6_BYTES else 0)


def _topic_at(record: bytes | memoryview, at: int, sys_flag: int) -> int:
    body_at = at + _HEAD_BYTES + _IPV6_EXTRA[sys_flag >> 4 & 3]
    (body_bytes,) = _SIZE.unpack_from(record, body_at - 4)
    return body_at + int(body_bytes)


def _remember_topic_field(topic: str) -> tuple[int, bytes, int]:
    raw = topic.encode()
    if len(raw) <= _V1_TOPIC_BYTES_MAX:
        field = (MAGIC_V1, bytes((len(raw),)) + raw, _FIXED_BYTES + len(raw))
    else:
        field = (MAGIC_V2, _pack_length(len(raw)) + raw, _FIXED_BYTES + 1 + len(raw))
    if len(_topic_fields) >= CACHED_TOPICS_MAX:
        _topic_fields.clear()
    _topic_fields[topic] = field
    return field


def _remember_topic_name(raw: bytes, at: int) -> str:
    try:
        topic = raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed("topic is not UTF-8", at + error.start) from None
    if len(_topic_names) >= CACHED_TOPICS_MAX:
        _topic_names.clear()
    _topic_names[raw] = topic
    return topic


def _malformed(message: str, at: int, **fields: object) -> ProtocolViolation:
    return ProtocolViolation("stored_message_malformed", message, at=at, **fields)
