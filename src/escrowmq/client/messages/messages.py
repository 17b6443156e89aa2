"""Messages as users of the SDK see them: outgoing and received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, TypeVar, cast, overload

from escrowmq.client.messages.codecs import JSON, Codec
from escrowmq.client.messages.message_ids import new_message_id
from escrowmq.client.messages.wire_form import (
    CONTENT_TYPE,
    PAYLOADS,
    Key,
    Sealed,
    WireForm,
    check_after_illegal,
    check_after_text,
    key_text,
    seal,
    takes_body,
)
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.message.compression import inflated
from escrowmq.protocol.message.limits import BODY_BYTES_MAX, check_name
from escrowmq.protocol.message.properties import (
    ALLOWED_MS,
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    KEYS,
    LEDGER,
    ORIGIN_MESSAGE_ID,
    OWN_TRANSACTION_ID,
    PGROUP,
    RETRY_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRANSACTION_ID,
    UNIQ_KEY,
    WAIT,
    format_properties,
    parse_properties,
    split_keys,
)
from escrowmq.protocol.message.stored_message import StoredMessage

if TYPE_CHECKING:
    from escrowmq.client.producer.transaction_steps import TransactionSteps

Body: TypeAlias = object
"""Bytes, text (sent as UTF-8), an object that the producer's codec encodes, or a function.

A function is called when the message leaves, and returns one of the other kinds.
"""

T = TypeVar("T")
if TYPE_CHECKING:
    import typing_extensions

    # With the default, ``Received`` alone means ``Received[Any]`` for a strict type checker, too.
    BodyT_co = typing_extensions.TypeVar("BodyT_co", covariant=True, default=Any)
else:
    BodyT_co = TypeVar("BodyT_co", covariant=True)


class _Undecoded(Enum):
    """A sentinel that keeps its identity when a message is copied or pickled."""

    NOT_DECODED = "not_decoded"


NOT_DECODED = _Undecoded.NOT_DECODED

#: Names of properties that only the SDK or the broker may set.
_RESERVED = frozenset(
    {UNIQ_KEY, KEYS, TAGS, TIMER_DELAY_MS, TIMER_DELIVER_MS, LEDGER, ALLOWED_MS}
    | {OWN_TRANSACTION_ID, TRAN_MSG, PGROUP, WAIT}
)


@dataclass(slots=True, kw_only=True)
class Message:
    """A message to send.

    In a transaction it may be changed until the block ends. A ``body`` that is a function is
    called then, when the database has generated its ids. ``send`` encodes an object; to change
    it afterwards, assign ``body``.
    """

    topic: str
    body: Body = b""
    #: Messages with the same key stay in order, and can be found by it. May be a function.
    key: Key = ""
    #: Further keys by which the message can be found.
    keys: tuple[str, ...] = ()
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Delay after the send, or the commit, until the message becomes visible.
    delay_ms: int = 0
    #: Time when the message becomes visible, in milliseconds since 1970; not in a transaction.
    deliver_at_ms: int = 0
    #: Age of a half message before its first check, in whole seconds, rounded up. It overrides the
    #: producer's setting. Only for transactions; of several messages, the longest age counts.
    check_after_s: float | None = None
    #: Generated at the first sending if it is empty; never changes afterwards.
    message_id: str = ""
    #: Set by the producer before it sends a half message; a back-check asks about this id.
    transaction_id: str = ""
    #: The result of the last encoding of the body.
    _sealed: Sealed | None = field(default=None, init=False, repr=False, compare=False)
    #: The key function, the body that it was called with, and the key that it returned.
    _made_key: tuple[object, object, str] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def seal(self, codec: Codec = JSON) -> None:
        """Encode an object now, so that ``send`` fails if it cannot be encoded.

        A body that is a function is called later, when the message leaves.
        """
        self.unseal()
        if callable(self.body) and not isinstance(self.body, type):
            return
        if not isinstance(self.body, PAYLOADS):
            self._sealed = seal(self.body, codec, self.topic)
        if callable(self.key) and takes_body(self.key):
            self._key_of(self.body)

    def unseal(self) -> None:
        """Forget the last encoding, for a message that is sent a second time."""
        self._sealed = self._made_key = None

    @property
    def has_functions(self) -> bool:
        """Whether the body or the key is computed when the message leaves."""
        return callable(self.body) or callable(self.key)

    def wire(self, codec: Codec = JSON) -> WireForm:
        """Return body and key as they are sent. Functions are called once, by the first call."""
        body, key = self.body, self.key
        if type(body) is bytes and type(key) is str and len(body) <= BODY_BYTES_MAX:
            return WireForm(body, key, "")
        sealed = self._sealed
        if sealed is None or sealed.source is not body:
            sealed = self._sealed = seal(body, codec, self.topic)
        return WireForm(sealed.data, self._key_of(sealed.value), sealed.content_type)

    def payload(self) -> bytes:
        """Return the bytes to send."""
        return self.wire().body

    def _key_of(self, value: object) -> str:
        key = self.key
        if not callable(key):
            return key_text(key)
        made = self._made_key
        if made is None or made[0] is not key or made[1] is not value:
            text = key_text(key(value) if takes_body(key) else key())
            made = self._made_key = (key, value, text)
        return made[2]

    def property_bytes(
        self, more: Mapping[str, str] | None = None, wire: WireForm | None = None
    ) -> bytes:
        """Return the encoded properties; give the message an id if it has none."""
        wire = wire or self.wire()
        self.message_id = self.message_id or new_message_id()
        # Check names here: messages of several callers share a request, and the broker would
        # refuse the whole request.
        check_name("topic", self.topic)
        check_name("message_id", self.message_id)
        pairs = {UNIQ_KEY: self.message_id, WAIT: "true"}
        if wire.key or self.keys:
            pairs[KEYS] = self._joined_keys(wire.key)
        if self.tag:
            if not isinstance(self.tag, str):
                raise RequestRefused("tag_illegal", "a tag is text", type=type(self.tag).__name__)
            if "|" in self.tag:
                raise RequestRefused("tag_illegal", "a tag has no |", tag=self.tag)
            pairs[TAGS] = self.tag
        if self.delay_ms or self.deliver_at_ms or self.check_after_s is not None:
            pairs.update(self._times())
        if wire.content_type:
            # The message's own properties, which follow, may override the codec's content type.
            pairs[CONTENT_TYPE] = wire.content_type
        if self.properties:
            pairs.update(self._checked_properties())
        if more:
            pairs.update(more)
        return format_properties(pairs)

    def _times(self) -> Mapping[str, str]:
        pairs = {}
        if self.delay_ms:
            pairs[TIMER_DELAY_MS] = str(self.delay_ms)
        elif self.deliver_at_ms:
            pairs[TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.check_after_s is not None:
            name = CHECK_IMMUNITY_TIME_IN_SECONDS
            if self.properties and name in self.properties:
                raise check_after_illegal(self.check_after_s, f"the property {name} is set, too")
            pairs[name] = check_after_text(self.check_after_s)
        return pairs

    def _joined_keys(self, first: str) -> str:
        if isinstance(self.keys, str):
            raise RequestRefused("key_illegal", "keys is a tuple; one key is key=…", keys=self.keys)
        keys = [first] if first else []
        keys += map(key_text, self.keys)
        if any(" " in key for key in keys):
            raise RequestRefused("key_illegal", "a key has no blanks", keys=keys)
        return " ".join(keys)

    def _checked_properties(self) -> Mapping[str, str]:
        reserved = _RESERVED.intersection(self.properties)
        if reserved:
            raise RequestRefused("property_reserved", "choose another name", names=sorted(reserved))
        if TRANSACTION_ID not in self.properties:
            return self.properties
        # The id is of an earlier transaction of this message. The broker adds the current one.
        return {name: text for name, text in self.properties.items() if name != TRANSACTION_ID}


class MessageFields(TypedDict, total=False):
    """Fields of a message besides topic and body; ``Message`` describes them."""

    key: Key
    keys: tuple[str, ...]
    tag: str
    message_id: str
    properties: Mapping[str, str]
    delay_ms: int
    deliver_at_ms: int
    check_after_s: float | None


def message_of(topic: str | Message, body: Body, fields: MessageFields) -> Message:
    """Return the message for the arguments of ``send``, which may include a Message."""
    if not isinstance(topic, str | Message):
        raise RequestRefused("topic_illegal", "a topic is text", type=type(topic).__name__)
    if not isinstance(topic, Message):
        return Message(topic=topic, body=body, **fields)
    if not isinstance(body, bytes) or body or fields:
        raise RequestRefused("message_given_twice", "give a Message, or topic, body and fields")
    return topic


class SendStatus(StrEnum):
    """How safely a message is stored; only Apache's broker returns a value other than SEND_OK."""

    SEND_OK = "send_ok"
    #: Stored, but not yet on the broker's disk.
    FLUSH_DISK_TIMEOUT = "flush_disk_timeout"
    #: Stored, but not yet on the broker's slave.
    FLUSH_SLAVE_TIMEOUT = "flush_slave_timeout"
    #: Stored, but the broker has no slave to copy it to.
    SLAVE_NOT_AVAILABLE = "slave_not_available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where the broker stored a message."""

    message_id: str
    topic: str
    broker_name: str
    queue_id: int
    #: -1 while a delayed message is not visible yet.
    queue_offset: int
    status: SendStatus = SendStatus.SEND_OK


def fill_in(message: Message, codec: Codec) -> None:
    """Encode an object, and call the functions for body and key, on the caller's thread."""
    message.seal(codec)
    if message.has_functions:
        message.wire(codec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Generic[BodyT_co]):
    """A message as a consumer gets it; ``Received[Order]`` also has the body as an Order."""

    topic: str
    body: bytes
    #: The first of ``keys``.
    key: str
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    #: The same in every delivery of the message.
    message_id: str
    #: Empty unless the message was sent in a transaction.
    transaction_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    #: How often the message was returned for a retry before.
    retries: int
    born_at_ms: int
    visible_at_ms: int
    log_offset: int
    #: The topic of the queue that the message was read from; for a retry, the retry topic.
    queue_topic: str
    #: Why the body cannot be read. Such a message becomes a dead letter without a handler call.
    problem: str = ""
    #: The handler's ``consumer.transaction`` blocks; the consumer checks that they committed.
    transactions: list[TransactionSteps] = field(default_factory=list, repr=False, compare=False)
    #: The decoded body, which ``value`` returns.
    decoded: object = field(default=NOT_DECODED, repr=False, compare=False)

    @property
    def value(self) -> BodyT_co:
        """The body as the type that the handler or the loop asked for."""
        if self.decoded is NOT_DECODED:
            raise RequestRefused(
                "body_not_decoded",
                "annotate the handler with Received[YourType], or call decode(YourType)",
                topic=self.topic,
                message_id=self.message_id,
            )
        return cast("BodyT_co", self.decoded)

    @overload
    def decode(self, body_type: type[T], codec: Codec = JSON) -> T: ...

    @overload
    def decode(self, body_type: object, codec: Codec = JSON) -> Any: ...  # noqa: ANN401 - no class

    def decode(self, body_type: Any, codec: Codec = JSON) -> Any:
        """Return the body as this type; raise ``body_not_decodable`` if it does not fit."""
        from escrowmq.client.messages.body_reading import BodyReader

        return BodyReader(body_type, (codec,)).read(self)


def received(stored: StoredMessage, broker_name: str) -> Received:
    """Return a stored message as its consumer gets it."""
    properties = parse_properties(stored.properties)
    body, problem = stored.body, ""
    try:
        body = inflated(stored)
    except ProtocolViolation as violation:
        problem = str(violation)
    keys = split_keys(properties.get(KEYS, ""))
    return Received(
        topic=properties.get(RETRY_TOPIC, stored.topic),
        queue_topic=stored.topic,
        broker_name=broker_name,
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        key=keys[0] if keys else "",
        keys=keys,
        tag=properties.get(TAGS, ""),
        properties=properties,
        message_id=properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID, ""),
        transaction_id=properties.get(OWN_TRANSACTION_ID) or properties.get(TRANSACTION_ID, ""),
        body=body,
        problem=problem,
        retries=stored.reconsume_times,
        born_at_ms=stored.born_at_ms,
        visible_at_ms=stored.stored_at_ms,
    )
