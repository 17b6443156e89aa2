"""A stored message in the form that gRPC clients read."""

from __future__ import annotations

from hashlib import md5
from ipaddress import ip_address
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.names import duration, resource_of, timestamp
from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.grpc.enums import GrpcDigestType, GrpcEncoding, GrpcMessageType
from escrowmq.protocol.grpc.messages import DeadLetterQueue, Digest, Message, SystemProperties
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


def told_message(record: bytes) -> Message:
    """Return a stored message for a gRPC client."""
    stored = decode(record)
    properties = parse_properties(stored.properties)
    body = _body(stored)
    system = SystemProperties(
        message_id=properties.get(UNIQ_KEY)
        or offset_message_id(stored.store_host, stored.log_offset),
        body_digest=_digest(body),
        body_encoding=GrpcEncoding.IDENTITY,
        message_type=_type_of(properties),
        born_timestamp=timestamp(stored.born_at_ms),
        born_host=_address(stored.born_host),
        store_timestamp=timestamp(stored.stored_at_ms),
        store_host=_address(stored.store_host),
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=stored.reconsume_times + 1,
    )
    _add(system, properties)
    users = {name: value for name, value in properties.items() if name not in RESERVED}
    return Message(
        topic=resource_of(stored.topic), user_properties=users, system_properties=system, body=body
    )


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


def _address(packed: bytes) -> str:
    return format_address(str(ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big"))


def _digest(body: bytes) -> Digest:
    # Clients disagree on CRC32: the Node.js client expects decimals, the others hexadecimals.
    checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    return Digest(type=GrpcDigestType.MD5, checksum=checksum)


def _body(stored: StoredMessage) -> bytes:
    """Return the body without compression: gRPC clients do not read that of remoting clients."""
    try:
        return inflated(stored, BODY_BYTES_MAX)
    except ProtocolViolation:
        # Somebody sent it like this, and the reader can still look at its bytes.
        return stored.body
