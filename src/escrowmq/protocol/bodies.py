"""JSON bodies: how they are read and written, and those that are about queues.

We write standard JSON.  The one exception are maps whose keys are queues: RocketMQ's JSON library
writes such a key as an object, ``{{"topic":...}:5}``.  Its tools up to 5.3 also read a key that is
that object as text, which would be JSON; those of 5.4 do not.  So we write what all of them read.
The same library writes numbers as keys, ``{0:"10.0.0.1:10911"}``; that we read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import field

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name, refuse_long

_encode = msgspec.json.Encoder().encode


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of every JSON body."""


BodyT = TypeVar("BodyT", bound=Body)


def read_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Read a body; what we do not know in it is passed over, and null counts as absent."""
    try:
        try:
            body: BodyT = _decoder(kind).decode(data)
        except msgspec.ValidationError:
            body = _read_leniently(kind, data)
        except msgspec.DecodeError:
            body = _read_leniently(kind, _NUMBER_KEY.sub(_quoted, data))
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("body_malformed", str(error), body=kind.__name__) from None
    return body


def _read_leniently(kind: type[BodyT], data: bytes) -> BodyT:
    fields = _without_nulls(msgspec.json.decode(data))
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        refuse_long(kind, fields)
        raise


#: A text, which is left alone, or a number in the place of a key.
_NUMBER_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"|(?<=[{,])(-?[0-9]+)(?=:)')


def _quoted(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else b'"%b"' % found[1]


def encode_body(body: Body) -> bytes:
    """Write a body."""
    return _encode(body)


class Queue(Body, frozen=True, kw_only=True):
    """A queue's full name."""

    broker_name: Name
    queue_id: Int32
    topic: Name


class LockRequest(Body, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that an ordered consumer wants for itself."""

    consumer_group: Name
    client_id: Name
    queues: tuple[Queue, ...] = field(name="mqSet", default=())


class LockResponse(Body, frozen=True, kw_only=True):
    """The queues that the client has locked now."""

    queues: tuple[Queue, ...] = field(name="lockOKMQSet")


class ConsumerListResponse(Body, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_LIST_BY_GROUP."""

    client_ids: tuple[str, ...] = field(name="consumerIdList")


class AssignmentRequest(Body, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT: a consumer lets the broker share out the queues."""

    topic: Name
    consumer_group: Name
    client_id: Name
    strategy_name: Name = ""
    message_model: Name = ""


class Assignment(Body, frozen=True, kw_only=True):
    """One queue for the client that asked."""

    queue: Queue = field(name="messageQueue")
    mode: str = "PULL"
    attachments: dict[str, str] = field(default_factory=dict)


class AssignmentResponse(Body, frozen=True, kw_only=True):
    """No queues means none for this client."""

    assignments: tuple[Assignment, ...] = field(name="messageQueueAssignments")


class TopicQueueStats(Body, frozen=True, kw_only=True):
    """One queue of a topic."""

    last_stored_at_ms: Int64 = field(name="lastUpdateTimestamp")
    max_offset: Int64
    min_offset: Int64


class ConsumeQueueStats(Body, frozen=True, kw_only=True):
    """How far a group is in one queue."""

    broker_offset: Int64
    consumer_offset: Int64
    consumed_at_ms: Int64 = field(name="lastTimestamp")
    pull_offset: Int64


class TimeSpan(Body, frozen=True, kw_only=True):
    """From when the messages of one queue are, and how far behind a group is."""

    queue: Queue = field(name="messageQueue")
    first_at_ms: Int64 = field(name="minTimeStamp", default=-1)
    last_at_ms: Int64 = field(name="maxTimeStamp", default=-1)
    consumed_at_ms: Int64 = field(name="consumeTimeStamp", default=-1)
    delay_ms: Int64 = field(name="delayTime", default=0)


class TimeSpans(Body, frozen=True, kw_only=True):
    """The answer to QUERY_CONSUME_TIME_SPAN."""

    spans: tuple[TimeSpan, ...] = field(name="consumeTimeSpanSet")


def encode_topic_stats(queues: Mapping[Queue, TopicQueueStats]) -> bytes:
    """The answer to GET_TOPIC_STATS_INFO."""
    return _encode({"offsetTable": _table(queues), "topicPutTps": 0.0})


def encode_consume_stats(
    queues: Mapping[Queue, ConsumeQueueStats], consumed_per_second: float
) -> bytes:
    """The answer to GET_CONSUME_STATS."""
    return _encode({"consumeTps": consumed_per_second, "offsetTable": _table(queues)})


def encode_offsets(offsets: Mapping[Queue, int]) -> bytes:
    """The answer to INVOKE_BROKER_TO_RESET_OFFSET, and what clients are told of it."""
    return _encode({"offsetTable": _table(offsets)})


def _table(by_queue: Mapping[Queue, object]) -> msgspec.Raw:
    pairs = [b"%b:%b" % (_encode(queue), _encode(value)) for queue, value in by_queue.items()]
    return msgspec.Raw(b"{%b}" % b",".join(pairs))


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


@cache
def _decoder(kind: type[BodyT]) -> msgspec.json.Decoder[BodyT]:
    return msgspec.json.Decoder(kind, strict=False)
