"""What a message may be: held to these limits before anything of it is written."""

from __future__ import annotations

import re

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import Message
from escrowmq.protocol.ids import HOST_BYTES
from escrowmq.protocol.properties import PROPERTIES_BYTES_MAX, properties_too_large

BODY_BYTES_MAX = 4 * 1024 * 1024
TOPIC_CHARS_MAX = 127
#: For the topics that the broker names after a consumer group.
GROUP_TOPIC_CHARS_MAX = 255
GROUP_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")
QUEUE_ID_MAX = 2**31 - 1
#: Topics kept by each cache of topics: a full one is emptied, and fills again with those in use.
CACHED_TOPICS_MAX = 16_384

_LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_RANGES = (
    ("flag", *_INT32),
    ("sys_flag", *_INT32),
    ("reconsume_times", *_INT32),
    ("born_at_ms", *_INT64),
    # Not in this layout, but stored beside it, and a negative one means nothing.
    ("deliver_after_ms", 0, 2**63 - 1),
    ("deliver_at_ms", 0, 2**63 - 1),
)

_legal_topics: set[str] = set()


def validate(message: Message) -> None:
    """Refuse what cannot be stored, with the limit and the value that broke it."""
    if (
        message.topic not in _legal_topics
        or len(message.body) > BODY_BYTES_MAX
        or len(message.properties) > PROPERTIES_BYTES_MAX
        or len(message.born_host) not in HOST_BYTES
        # What is in range and not negative leaves nothing; the rest is looked at one by one.
        or (message.queue_id | message.flag | message.sys_flag | message.reconsume_times) >> 31
        or (message.born_at_ms | message.deliver_after_ms | message.deliver_at_ms) >> 63
    ):
        _validate_each(message)


def validate_queue(topic: str, queue_id: int) -> None:
    """Refuse a queue that cannot be named."""
    validate_topic(topic)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise RequestRefused("queue_id_illegal", queue_id=queue_id, max=QUEUE_ID_MAX)


def _validate_each(message: Message) -> None:
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
    """Refuse a name that no topic can have."""
    chars_max = GROUP_TOPIC_CHARS_MAX if topic.startswith(GROUP_TOPIC_PREFIXES) else TOPIC_CHARS_MAX
    if not 1 <= len(topic) <= chars_max:
        # A name may be as long as a frame: the start tells which one it is.
        raise RequestRefused(
            "topic_illegal", topic=topic[:chars_max], chars=len(topic), chars_max=chars_max
        )
    if not _LEGAL_TOPIC.fullmatch(topic):
        raise RequestRefused("topic_illegal", "may have letters, digits, _ - % and |", topic=topic)
    if len(_legal_topics) >= CACHED_TOPICS_MAX:
        _legal_topics.clear()
    _legal_topics.add(topic)
