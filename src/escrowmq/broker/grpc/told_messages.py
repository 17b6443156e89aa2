"""A stored message in the form that gRPC clients read."""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from ipaddress import ip_address
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.names import duration, resource_of, set_time, timestamp
from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.grpc.enums import GrpcDigestType, GrpcEncoding, GrpcMessageType
from escrowmq.protocol.grpc.messages import DeadLetterQueue, Message, SystemProperties
from escrowmq.protocol.grpc.reserved import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    RESERVED,
    SHARDING_KEY,
    TRACE_CONTEXT,
)
from escrowmq.protocol.message.compression import inflated
from escrowmq.protocol.message.ids import format_address, offset_message_id
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAYS,
    KEYS,
    TAGS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    parse_properties,
    split_keys,
)
from escrowmq.protocol.message.stored_message import StoredMessage, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESSES_MAX = 16_384
"""Addresses whose texts are cached."""

_MD5, _IDENTITY = int(GrpcDigestType.MD5), int(GrpcEncoding.IDENTITY)


def told_message(record: bytes) -> Message:
    """Return a stored message for a gRPC client."""
    message = Message()
    tell_message(message, record)
    return message


def tell_message(message: Message, record: bytes) -> None:
    """Write a stored message into an empty one for a gRPC client.

    An answer takes its message in place, because protobuf would copy one that is made before.
    """
    stored = decode(record)
    properties = parse_properties(stored.properties)
    body = _body(stored)
    message.topic.CopyFrom(resource_of(stored.topic))
    message.body = body
    system = message.system_properties
    system.message_id = properties.get(UNIQ_KEY) or offset_message_id(
        stored.store_host, stored.log_offset
    )
    digest = system.body_digest
    # Clients disagree on CRC32: the Node.js client expects decimals, the others hexadecimals.
    digest.type = _MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = _IDENTITY
    system.message_type = _type_of(properties)
    set_time(system.born_timestamp, stored.born_at_ms)
    system.born_host = _address(stored.born_host)
    set_time(system.store_timestamp, stored.stored_at_ms)
    system.store_host = _address(stored.store_host)
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1
    _add(system, properties)
    for name, value in properties.items():
        if name not in RESERVED:
            message.user_properties[name] = value


def _add(system: SystemProperties, properties: Mapping[str, str]) -> None:
    """Add what only some messages have."""
    if TAGS in properties:
        system.tag = properties[TAGS]
    if KEYS in properties:
        system.keys.extend(split_keys(properties[KEYS]))
    if SHARDING_KEY in properties:
        system.message_group = properties[SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    deliver_at_ms = properties.get(TIMER_DELIVER_MS, "")
    if deliver_at_ms.isdecimal():
        system.delivery_timestamp.CopyFrom(timestamp(int(deliver_at_ms)))
    after_s = properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    if after_s.isdecimal():
        given = duration(int(after_s) * 1_000)
        system.orphaned_transaction_recovery_duration.CopyFrom(given)
    if DLQ_ORIGIN_TOPIC in properties:
        origin = DeadLetterQueue(
            topic=properties[DLQ_ORIGIN_TOPIC],
            message_id=properties.get(DLQ_ORIGIN_MESSAGE_ID, ""),
        )
        system.dead_letter_queue.CopyFrom(origin)


def _type_of(properties: Mapping[str, str]) -> GrpcMessageType:
    if properties.get(TRAN_MSG) == "true":
        return GrpcMessageType.TRANSACTION
    if any(name in properties for name in DELAYS):
        return GrpcMessageType.DELAY
    return GrpcMessageType.FIFO if SHARDING_KEY in properties else GrpcMessageType.NORMAL


@lru_cache(ADDRESSES_MAX)
def _address(packed: bytes) -> str:
    return format_address(str(ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big"))


def _body(stored: StoredMessage) -> bytes:
    """Return the body without compression: gRPC clients do not read that of remoting clients."""
    try:
        return inflated(stored, BODY_BYTES_MAX)
    except ProtocolViolation:
        # The body is not what its flag says, or too large; the consumer gets it as it was sent.
        return stored.body
