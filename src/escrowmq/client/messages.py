"""Messages as users of the SDK see them: those they send, and those they receive."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, TypedDict

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.limits import BODY_BYTES_MAX, check_name
from escrowmq.protocol.properties import (
    KEYS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRANSACTION_ID,
    UNIQ_KEY,
    format_properties,
    parse_properties,
)
from escrowmq.protocol.stored_message import SYS_COMPRESSED, StoredMessage

if TYPE_CHECKING:
    from typing import TypeAlias

    from escrowmq.client.transaction_order import Order

Payload: TypeAlias = "bytes | bytearray | memoryview | str"
"""Text is sent as UTF-8."""

Body: TypeAlias = "Payload | Callable[[], Payload]"
"""A function is called when the message leaves."""

#: Properties that a half message carries, so that whoever is asked about it knows where to look.
LEDGER = "ESCROWMQ_LEDGER"
ALLOWED_MS = "ESCROWMQ_ALLOWED_MS"
#: Apache's broker writes the message's id where a transaction's id was, so it is here as well.
OWN_TRANSACTION_ID = "ESCROWMQ_TRANSACTION_ID"

#: Names that the SDK or the broker sets.
_RESERVED = frozenset(
    {UNIQ_KEY, KEYS, TAGS, TIMER_DELAY_MS, TIMER_DELIVER_MS, TRANSACTION_ID, LEDGER, ALLOWED_MS}
    | {OWN_TRANSACTION_ID, "TRAN_MSG", "PGROUP", "WAIT"}
)
_COMPRESSION_SHIFT = 8
_COMPRESSION_MASK = 0x7
#: Of bodies that other clients compress; 0 is what clients before 5.0 write.
_ZLIB_TYPES = (0, 3)
_INFLATED_BYTES_MAX = 4 * BODY_BYTES_MAX


@dataclass(slots=True, kw_only=True)
class Message:
    """What is to be sent.

    In a transaction it may be changed until the block ends: a ``body`` that is a function is
    called then, when the database has made its ids.
    """

    topic: str
    body: Body = b""
    #: Messages with the same key stay in order; it also finds them again.
    key: str = ""
    #: Further keys under which it can be found.
    keys: tuple[str, ...] = ()
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    #: How long after it was sent, or committed, it becomes visible.
    delay_ms: int = 0
    #: When it becomes visible, in milliseconds since 1970; not in a transaction.
    deliver_at_ms: int = 0
    #: Goes with it for life; made when it is sent if it is empty.
    message_id: str = ""
    #: Set by the producer before it sends a half message; a check is asked about this id.
    transaction_id: str = ""

    def payload(self) -> bytes:
        """The bytes to send."""
        body = self.body() if callable(self.body) else self.body
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes | bytearray | memoryview):
            raise RequestRefused(
                "body_illegal", "give bytes or text", topic=self.topic, type=type(body).__name__
            )
        if len(body) > BODY_BYTES_MAX:
            raise RequestRefused(
                "body_too_large", topic=self.topic, bytes=len(body), bytes_max=BODY_BYTES_MAX
            )
        return bytes(body)

    def property_bytes(self, more: Mapping[str, str] | None = None) -> bytes:
        """Its properties as they travel; gives it an id if it has none."""
        self.message_id = self.message_id or new_message_id()
        # Messages of several callers share a request, which the broker would refuse as a whole.
        check_name("topic", self.topic)
        check_name("message_id", self.message_id)
        pairs = {UNIQ_KEY: self.message_id, "WAIT": "true"}
        keys = (self.key, *self.keys) if self.key else self.keys
        if keys:
            if any(" " in key for key in keys):
                raise RequestRefused("key_illegal", "a key has no blanks", keys=list(keys))
            pairs[KEYS] = " ".join(keys)
        if self.tag:
            if "|" in self.tag:
                raise RequestRefused("tag_illegal", "a tag has no |", tag=self.tag)
            pairs[TAGS] = self.tag
        if self.delay_ms:
            pairs[TIMER_DELAY_MS] = str(self.delay_ms)
        elif self.deliver_at_ms:
            pairs[TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.properties:
            reserved = _RESERVED.intersection(self.properties)
            if reserved:
                raise RequestRefused(
                    "property_reserved", "choose another name", names=sorted(reserved)
                )
            pairs.update(self.properties)
        if more:
            pairs.update(more)
        return format_properties(pairs)


class MessageFields(TypedDict, total=False):
    """What a message may have besides topic and body; ``Message`` says what each is."""

    key: str
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    delay_ms: int
    deliver_at_ms: int
    message_id: str


def message_of(topic: str | Message, body: Body, fields: MessageFields) -> Message:
    """A message out of the arguments of a ``send``, which may have one already."""
    if not isinstance(topic, Message):
        return Message(topic=topic, body=body, **fields)
    if body != b"" or fields:
        raise RequestRefused("message_given_twice", "give a Message, or topic, body and fields")
    return topic


class SendStatus(StrEnum):
    """How safely a message is stored; only Apache's broker answers anything but SEND_OK."""

    SEND_OK = "send_ok"
    #: Stored, but not yet on the broker's disk.
    FLUSH_DISK_TIMEOUT = "flush_disk_timeout"
    #: Stored, but not yet on the broker's slave.
    FLUSH_SLAVE_TIMEOUT = "flush_slave_timeout"
    #: Stored, but the broker has no slave to copy it to.
    SLAVE_NOT_AVAILABLE = "slave_not_available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where a message is now."""

    message_id: str
    topic: str
    broker_name: str
    queue_id: int
    #: -1 while it waits for its time.
    queue_offset: int
    status: SendStatus = SendStatus.SEND_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as a consumer gets it."""

    topic: str
    body: bytes
    #: The first of ``keys``.
    key: str
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    #: The same for life, however often it is delivered.
    message_id: str
    #: Empty unless it came out of a transaction.
    transaction_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    #: How often it was given back before.
    retries: int
    born_at_ms: int
    visible_at_ms: int
    log_offset: int
    #: The queue that it was read from: a retry topic's for one that was given back.
    queue_topic: str
    #: Why its body cannot be read; no handler gets such a message, it becomes a dead letter.
    problem: str = ""
    #: The ``consumer.transaction`` blocks of its handler; the consumer sees whether they committed.
    transactions: list[Order] = field(default_factory=list, repr=False, compare=False)


def received(stored: StoredMessage, broker_name: str) -> Received:
    """A stored message, for its consumer."""
    properties = parse_properties(stored.properties)
    body, problem = stored.body, ""
    try:
        body = _inflated(stored)
    except ProtocolViolation as violation:
        problem = str(violation)
    keys = tuple(properties.get(KEYS, "").split())
    return Received(
        topic=properties.get(RETRY_TOPIC, stored.topic),
        body=body,
        key=keys[0] if keys else "",
        keys=keys,
        tag=properties.get(TAGS, ""),
        properties=properties,
        message_id=properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID, ""),
        transaction_id=properties.get(OWN_TRANSACTION_ID) or properties.get(TRANSACTION_ID, ""),
        broker_name=broker_name,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        retries=stored.reconsume_times,
        born_at_ms=stored.born_at_ms,
        visible_at_ms=stored.stored_at_ms,
        log_offset=stored.log_offset,
        queue_topic=stored.topic,
        problem=problem,
    )


def _inflated(stored: StoredMessage) -> bytes:
    if not stored.sys_flag & SYS_COMPRESSED:
        return stored.body
    kind = stored.sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
    if kind not in _ZLIB_TYPES:
        raise ProtocolViolation("compression_unknown", "compress bodies with zlib", kind=kind)
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored.body, _INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolViolation("body_not_compressed", str(error), topic=stored.topic) from None
    if not inflater.eof:
        raise ProtocolViolation(
            "body_not_compressed",
            f"cut short, or more than {_INFLATED_BYTES_MAX} bytes",
            topic=stored.topic,
        )
    return body


class _Ids:
    """Ids that no other process makes: random, then counted."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex().upper()
        self._next = count(1).__next__

    def make(self) -> str:
        return f"{self._prefix}{self._next():012X}"


_ids = _Ids()


def new_message_id() -> str:
    """32 characters, as RocketMQ's clients make them."""
    return _ids.make()


def new_transaction_id() -> str:
    """One that nobody else uses."""
    return new_message_id()


def _after_fork() -> None:
    global _ids  # noqa: PLW0603 - a child must not make its parent's ids
    _ids = _Ids()


os.register_at_fork(after_in_child=_after_fork)
