"""Reads a message that a gRPC client sends, and refuses one that RocketMQ's proxy refuses.

The limits are the proxy's. What the message says of itself (its type, its checksum) must agree with
what it has.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.broker.grpc.names import ms_of
from escrowmq.model.catalog import MessageType
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc.enums import GrpcDigestType, GrpcEncoding, GrpcMessageType
from escrowmq.protocol.grpc.reserved import RESERVED, SHARDING_KEY, TRACE_CONTEXT
from escrowmq.protocol.message.limits import BODY_BYTES_MAX, NAME_CHARS_MAX
from escrowmq.protocol.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    KEYS,
    PGROUP,
    TAGS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    format_properties,
    split_keys,
)
from escrowmq.protocol.message.sent_facts import SentFacts

if TYPE_CHECKING:
    from escrowmq.protocol.grpc.messages import Message, SystemProperties

USER_PROPERTIES_MAX = 128
USER_BYTES_MAX = 16 * 1024
MESSAGE_GROUP_BYTES_MAX = 63
RECOVERY_MS_MAX = 3_600_000

_TYPES: dict[int, MessageType] = {
    GrpcMessageType.NORMAL: MessageType.NORMAL,
    GrpcMessageType.FIFO: MessageType.FIFO,
    GrpcMessageType.DELAY: MessageType.DELAY,
    GrpcMessageType.TRANSACTION: MessageType.TRANSACTION,
}
_UNSUPPORTED = frozenset(map(int, (GrpcMessageType.LITE, GrpcMessageType.PRIORITY)))
#: A comparison with a member of an enum takes longer than one with its number.
_TRANSACTION, _GZIP = int(GrpcMessageType.TRANSACTION), int(GrpcEncoding.GZIP)


class ReadMessage(NamedTuple):
    """A message of a client, checked, with what the broker stores of it."""

    type: MessageType
    body: bytes
    properties: bytes
    facts: SentFacts
    #: Messages of one group keep their order.
    message_group: str
    born_at_ms: int


def read_message(message: Message, topic: str) -> ReadMessage:
    """Return what to store of a message for this topic."""
    # Reading a protobuf field takes as long as calling a function, so read few, and once.
    system = message.system_properties
    kind = _type_of(system)
    message_id, tag, keys = system.message_id, system.tag, tuple(system.keys)
    group = system.message_group if kind is MessageType.FIFO else ""
    users = message.user_properties
    properties = {UNIQ_KEY: message_id}
    texts = (message_id, *keys, tag) if system.HasField("tag") else (message_id, *keys)
    if users or kind is MessageType.FIFO or not _are_simple(texts):
        properties = _user_properties(message, system)
        _check_id(message_id)
        properties[UNIQ_KEY] = message_id
    if keys:
        properties[KEYS] = " ".join(keys)
        keys = split_keys(properties[KEYS])
    if tag:
        properties[TAGS] = tag
    if group:
        properties[SHARDING_KEY] = group
    if system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    deliver_at_ms = 0
    check_after_ms = None
    is_half = kind is MessageType.TRANSACTION
    if is_half:
        properties[TRAN_MSG] = "true"
        properties[PGROUP] = topic
        check_after_ms = _check_after_ms(system)
        if check_after_ms is not None:
            properties[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(check_after_ms // 1_000)
    elif kind is MessageType.DELAY:
        deliver_at_ms = _deliver_at_ms(system)
        properties[TIMER_DELIVER_MS] = str(deliver_at_ms)
    facts = SentFacts(is_half, topic, message_id, keys, tag, check_after_ms, 0, 0, deliver_at_ms)
    packed = format_properties(properties)
    body = _body(message, system)
    return ReadMessage(kind, body, packed, facts, group, ms_of(system.born_timestamp))


def _are_simple(texts: tuple[str, ...]) -> bool:
    """Whether texts keep every rule at first sight, as those of most messages do."""
    joined = "".join(texts)
    return (
        all(texts)
        and len(joined) <= NAME_CHARS_MAX
        and joined.isascii()
        and joined.isprintable()
        and " " not in joined
        and "|" not in joined
    )


def _type_of(system: SystemProperties) -> MessageType:
    """Return the type that a message has; refuse one that says another."""
    stated = system.message_type
    if stated in _UNSUPPORTED or system.lite_topic or system.HasField("priority"):
        raise RequestRefused(
            "message_type_unsupported", "this broker has no lite topics and no priorities"
        )
    is_half = stated == _TRANSACTION
    has_group = system.HasField("message_group")
    has_time = system.HasField("delivery_timestamp")
    if is_half + has_group + has_time > 1:
        raise RequestRefused(
            "message_type_wrong", "a message must be only one of: transactional, ordered, delayed"
        )
    found = MessageType.NORMAL
    if is_half:
        found = MessageType.TRANSACTION
    elif has_group:
        found = MessageType.FIFO
    elif has_time:
        found = MessageType.DELAY
    if stated and _TYPES.get(stated) is not found:
        raise RequestRefused(
            "message_type_wrong",
            "the type must match the fields of the message",
            message_type=stated,
            found=found.value,
        )
    return found


def _user_properties(message: Message, system: SystemProperties) -> dict[str, str]:
    """Return the user's properties; refuse illegal ones, and an illegal tag, key or group."""
    properties = dict(message.user_properties)
    texts = [*properties.keys(), *properties.values(), system.tag, *system.keys]
    size = sum([len(text.encode()) for text in texts])
    if len(properties) > USER_PROPERTIES_MAX or size > USER_BYTES_MAX:
        raise RequestRefused(
            "properties_too_large",
            f"send at most {USER_PROPERTIES_MAX} properties, {USER_BYTES_MAX} bytes in all",
            count=len(properties),
            bytes=size,
        )
    for name, value in properties.items():
        if name in RESERVED or not _is_plain(name) or not value or has_control(value):
            raise RequestRefused(
                "property_illegal",
                "a property must not be reserved, empty, or contain a control character",
                name=name[:64],
            )
    if system.HasField("tag") and (not _is_plain(system.tag) or "|" in system.tag):
        raise RequestRefused(
            "message_tag_illegal",
            "a tag must not be blank or contain | or a control character",
            tag=system.tag[:64],
        )
    for key in system.keys:
        if not _is_plain(key):
            raise RequestRefused(
                "message_key_illegal",
                "a key must not be blank or contain a control character",
                key=key[:64],
            )
    group = system.message_group
    if system.HasField("message_group") and (
        not _is_plain(group) or len(group.encode()) > MESSAGE_GROUP_BYTES_MAX
    ):
        raise RequestRefused(
            "message_group_illegal",
            f"must have 1 to {MESSAGE_GROUP_BYTES_MAX} bytes and no control character",
            message_group=group[:64],
        )
    return properties


def _check_id(message_id: str) -> None:
    if not _is_plain(message_id) or len(message_id) > NAME_CHARS_MAX:
        raise RequestRefused(
            "message_id_illegal",
            f"must have 1 to {NAME_CHARS_MAX} characters and no control character",
            message_id=message_id[:64],
        )


def _is_plain(text: str) -> bool:
    """Whether a text is neither blank nor has control characters."""
    return not has_control(text) and bool(text.strip())


def has_control(text: str) -> bool:
    """Whether a text has a control character, which RocketMQ's layout has no room for."""
    return not text.isprintable() and any(_is_control(char) for char in text)


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f"


def _deliver_at_ms(system: SystemProperties) -> int:
    at_ms = ms_of(system.delivery_timestamp)
    if at_ms <= 0:
        raise RequestRefused("delay_illegal", "name a time after 1970", deliver_at_ms=at_ms)
    return at_ms


def _check_after_ms(system: SystemProperties) -> int | None:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    after_ms = ms_of(system.orphaned_transaction_recovery_duration)
    if not 0 <= after_ms <= RECOVERY_MS_MAX:
        raise RequestRefused(
            "recovery_time_illegal",
            f"the time before the first check must be from 0 to {RECOVERY_MS_MAX} ms",
            ms=after_ms,
        )
    return after_ms or None


def _body(message: Message, system: SystemProperties) -> bytes:
    """Return the body, verified and not compressed."""
    body = message.body
    if not body:
        raise RequestRefused("body_empty", "a message needs a body")
    if len(body) > BODY_BYTES_MAX:
        raise _too_large(len(body))
    if system.HasField("body_digest"):
        digest = system.body_digest
        checksum = digest.checksum
        if checksum and not _is_digest(body, digest.type, checksum):
            raise RequestRefused(
                "body_corrupt", "the body does not match its checksum", checksum=checksum[:64]
            )
    if system.body_encoding == _GZIP:
        return _unzipped(body)
    return body


def _is_digest(body: bytes, kind: int, checksum: str) -> bool:
    if kind == GrpcDigestType.CRC32:
        found = f"{zlib.crc32(body):08X}"
    elif kind == GrpcDigestType.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif kind == GrpcDigestType.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return True
    return found.lower().lstrip("0") == checksum.lower().lstrip("0")


def _unzipped(body: bytes) -> bytes:
    """Return a compressed body as it was: remoting clients expect another compression."""
    # 31 is for gzip with its header. A small input may expand to a huge output, so limit that.
    unzip = zlib.decompressobj(31)
    try:
        plain = unzip.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error:
        plain = b""
    if len(plain) > BODY_BYTES_MAX:
        raise _too_large(len(plain))
    if not plain or not unzip.eof:
        raise RequestRefused("body_corrupt", "the body is not one complete gzip stream")
    return plain


def _too_large(size: int) -> RequestRefused:
    return RequestRefused("body_too_large", bytes=size, bytes_max=BODY_BYTES_MAX)
