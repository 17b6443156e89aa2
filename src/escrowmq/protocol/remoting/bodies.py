"""JSON bodies: reading and writing them, and the bodies about queues.

We write standard JSON, except for maps whose keys are queues. RocketMQ's JSON library writes such
a key as an object, ``{{"topic":...}:5}``. RocketMQ's tools up to 5.3 also accept that object as a
string key, which is valid JSON, but those of 5.4 do not. We write the object, which all of them
accept. The library also writes numbers as keys, ``{0:"10.0.0.1:10911"}``, which we accept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import field

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import Name, refuse_long
from escrowmq.protocol.remoting.headers import Int32, Int64

_encode = msgspec.json.Encoder().encode


class JsonBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of all JSON bodies."""


BodyT = TypeVar("BodyT", bound=JsonBody)


def read_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Decode a body. Unknown fields are ignored, and null counts as absent."""
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


#: Matches a string, which stays unchanged, or a number in the position of a key.
_NUMBER_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"|(?<=[{,])(-?[0-9]+)(?=:)')


def _quoted(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else b'"%b"' % found[1]


def encode_body(body: JsonBody) -> bytes:
    """Encode a body."""
    return _encode(body)


class QueueName(JsonBody, frozen=True, kw_only=True):
    """The full name of a queue."""

    broker_name: Name
    queue_id: Int32
    topic: Name


class LockRequest(JsonBody, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that an ordered consumer locks or unlocks."""

    consumer_group: Name
    client_id: Name
    queues: tuple[QueueName, ...] = field(name="mqSet", default=())


class LockResponse(JsonBody, frozen=True, kw_only=True):
    """The requested queues that the client holds the lock of now."""

    queues: tuple[QueueName, ...] = field(name="lockOKMQSet")


class ConsumerListResponse(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_LIST_BY_GROUP."""

    client_ids: tuple[str, ...] = field(name="consumerIdList")


class TopicQueueStats(JsonBody, frozen=True, kw_only=True):
    """Offsets and last store time of one queue of a topic."""

    last_stored_at_ms: Int64 = field(name="lastUpdateTimestamp")
    max_offset: Int64
    min_offset: Int64


class ConsumeQueueStats(JsonBody, frozen=True, kw_only=True):
    """Progress of a consumer group in one queue."""

    broker_offset: Int64
    consumer_offset: Int64
    consumed_at_ms: Int64 = field(name="lastTimestamp")
    pull_offset: Int64


class TimeSpan(JsonBody, frozen=True, kw_only=True):
    """The time span of one queue's messages, and how far a group lags behind."""

    queue: QueueName = field(name="messageQueue")
    first_at_ms: Int64 = field(name="minTimeStamp", default=-1)
    last_at_ms: Int64 = field(name="maxTimeStamp", default=-1)
    consumed_at_ms: Int64 = field(name="consumeTimeStamp", default=-1)
    delay_ms: Int64 = field(name="delayTime", default=0)


class TimeSpans(JsonBody, frozen=True, kw_only=True):
    """The answer to QUERY_CONSUME_TIME_SPAN."""

    spans: tuple[TimeSpan, ...] = field(name="consumeTimeSpanSet")


def encode_topic_stats(queues: Mapping[QueueName, TopicQueueStats]) -> bytes:
    """Encode the answer to GET_TOPIC_STATS_INFO."""
    return _encode({"offsetTable": _table(queues), "topicPutTps": 0.0})


def encode_consume_stats(
    queues: Mapping[QueueName, ConsumeQueueStats], consumed_per_second: float
) -> bytes:
    """Encode the answer to GET_CONSUME_STATS."""
    return _encode({"consumeTps": consumed_per_second, "offsetTable": _table(queues)})


def encode_offsets(offsets: Mapping[QueueName, int]) -> bytes:
    """Encode the offsets for the answer to INVOKE_BROKER_TO_RESET_OFFSET and for the clients."""
    return _encode({"offsetTable": _table(offsets)})


def _table(by_queue: Mapping[QueueName, object]) -> msgspec.Raw:
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
