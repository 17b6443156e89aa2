"""Limits of messages and of the text fields of requests.

The broker checks a message against these limits before it writes any of it. Each text field of a
request has one of the types below; ``refuse_long`` names the field that is longer than its type
allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, TypeAlias

import msgspec
from msgspec import inspect

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.topic_names import GROUP_TOPIC_PREFIXES
from escrowmq.protocol.message.ids import HOST_BYTES
from escrowmq.protocol.message.properties import PROPERTIES_BYTES_MAX, properties_too_large

BODY_BYTES_MAX = 4 * 1024 * 1024
TOPIC_CHARS_MAX = 127
#: Limit for the topics that the broker names after a consumer group.
GROUP_TOPIC_CHARS_MAX = 255
QUEUE_ID_MAX = 2**31 - 1
#: Topics in each cache of topics. A full cache is cleared and refills with the topics in use.
CACHED_TOPICS_MAX = 16_384

#: RocketMQ's longest name. A message's topic has a lower limit, see above.
NAME_CHARS_MAX = 255
EXPRESSION_CHARS_MAX = 8_192
VALUE_CHARS_MAX = 65_536
LIST_CHARS_MAX = 1024 * 1024
#: A text that is only displayed, such as a reason or an error, is cut to this length.
SHOWN_CHARS_MAX = 1_024

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
"""A topic, group, client, transaction, ledger, app, query, batch, epoch, broker or setting."""
Expression: TypeAlias = Annotated[str, msgspec.Meta(max_length=EXPRESSION_CHARS_MAX)]
"""A subscription expression of a consumer group."""
Searched: TypeAlias = Annotated[str, msgspec.Meta(max_length=PROPERTIES_BYTES_MAX)]
"""A key or a tag. Those of a message must fit into its properties."""
Value: TypeAlias = Annotated[str, msgspec.Meta(max_length=VALUE_CHARS_MAX)]
"""A value that tools store under a name."""
NameList: TypeAlias = Annotated[str, msgspec.Meta(max_length=LIST_CHARS_MAX)]
"""A list of names, or a cursor, which contains names."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_RANGES = (
    ("flag", *_INT32),
    ("sys_flag", *_INT32),
    ("reconsume_times", *_INT32),
    ("born_at_ms", *_INT64),
    # Not in the stored layout, but stored beside it. A negative value has no meaning.
    ("deliver_after_ms", 0, 2**63 - 1),
    ("deliver_at_ms", 0, 2**63 - 1),
)

_legal_topics: set[str] = set()


def validate(message: SentMessage) -> None:
    """Refuse a message that cannot be stored, and name the limit and the value."""
    if (
        message.topic not in _legal_topics
        or len(message.body) > BODY_BYTES_MAX
        or len(message.properties) > PROPERTIES_BYTES_MAX
        or len(message.born_host) not in HOST_BYTES
        # Fast path: the shift leaves 0 if all values are in range and none is negative. Some
        # negative values are legal; _validate_each checks each field.
        or (message.queue_id | message.flag | message.sys_flag | message.reconsume_times) >> 31
        or (message.born_at_ms | message.deliver_after_ms | message.deliver_at_ms) >> 63
    ):
        _validate_each(message)


def validate_queue(topic: str, queue_id: int) -> None:
    """Refuse a queue with an illegal topic name or queue id."""
    validate_topic(topic)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise RequestRefused("queue_id_illegal", queue_id=queue_id, max=QUEUE_ID_MAX)


def _validate_each(message: SentMessage) -> None:
    validate_queue(message.topic, message.queue_id)
    if len(message.body) > BODY_BYTES_MAX:
        raise RequestRefused("body_too_large", bytes=len(message.body), bytes_max=BODY_BYTES_MAX)
    if len(message.properties) > PROPERTIES_BYTES_MAX:
        raise properties_too_large(len(message.properties))
    if len(message.born_host) not in HOST_BYTES:
        raise RequestRefused(
            "born_host_illegal", "must have 8 or 20 bytes", born_host=message.born_host
        )
    for field, low, high in _RANGES:
        value = getattr(message, field)
        if not low <= value <= high:
            raise RequestRefused("number_out_of_range", field=field, value=value, min=low, max=high)


def validate_topic(topic: str) -> None:
    """Refuse an illegal topic name."""
    chars_max = GROUP_TOPIC_CHARS_MAX if topic.startswith(GROUP_TOPIC_PREFIXES) else TOPIC_CHARS_MAX
    if not 1 <= len(topic) <= chars_max:
        # The name may be as long as a frame, so the error quotes only its start.
        raise RequestRefused(
            "topic_illegal", topic=topic[:chars_max], chars=len(topic), chars_max=chars_max
        )
    if not _LEGAL_TOPIC.fullmatch(topic):
        raise RequestRefused("topic_illegal", "may have letters, digits, _ - % and |", topic=topic)
    if len(_legal_topics) >= CACHED_TOPICS_MAX:
        _legal_topics.clear()
    _legal_topics.add(topic)


def check_name(field: str, name: str) -> None:
    """Refuse a name with more than ``NAME_CHARS_MAX`` characters."""
    if len(name) > NAME_CHARS_MAX:
        raise too_long(field, name, NAME_CHARS_MAX)


def check_plain_name(field: str, name: str) -> None:
    """Refuse a name that is too long, or that has a control character."""
    check_name(field, name)
    if _CONTROL.search(name):
        raise RequestRefused(
            "name_illegal",
            "the field must not have a control character",
            field=field,
            start=name[:32],
        )


def too_long(field: str, text: str, chars_max: int) -> RequestRefused:
    """Return the error that names the field and quotes the start of its text."""
    return RequestRefused(
        "name_too_long",
        f"the field has at most {chars_max} characters",
        field=field,
        chars=len(text),
        chars_max=chars_max,
        start=text[:32],
    )


def refuse_long(kind: type[msgspec.Struct], fields: object) -> None:
    """Refuse the first text that is too long for its field in this kind of header, body or row."""
    _refuse_long(_described(kind), fields, "")


_Part: TypeAlias = tuple[inspect.Type, object, str]
"""A type, a value that should have this type, and the name of its field."""


def _refuse_long(kind: inspect.Type, value: object, field: str) -> None:
    if isinstance(kind, inspect.StrType) and isinstance(value, str):
        if kind.max_length is not None and len(value) > kind.max_length:
            raise too_long(field, value, kind.max_length)
        return
    for part in _parts(kind, value, field):
        _refuse_long(*part)


def _parts(kind: inspect.Type, value: object, field: str) -> Iterator[_Part]:
    if isinstance(kind, inspect.UnionType):
        yield from ((one, value, field) for one in kind.types)
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        for one in kind.fields:
            yield one.type, value.get(one.encode_name), one.encode_name
    elif isinstance(kind, inspect.StructType) and isinstance(value, list):
        for one, held in zip(kind.fields, value, strict=False):
            yield one.type, held, one.encode_name
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        yield from ((kind.item_type, one, field) for one in value)
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        yield from ((kind.key_type, one, field) for one in value)
        yield from ((kind.value_type, one, field) for one in value.values())


@cache
def _described(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)
