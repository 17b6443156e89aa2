"""A message that the broker stores again for one consumer group: a retry or a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TRAN_MSG,
    format_properties,
    index_facts,
    parse_properties,
)

if TYPE_CHECKING:
    from escrowmq.protocol.message.stored_message import StoredMessage


def sent_again(
    message: StoredMessage,
    topic: str,
    queue_id: int = 0,
    deliver_at_ms: int = 0,
    *,
    attempts: int = 1,
) -> SentMessage:
    """Return the message for a topic of the group, always as an ordinary message.

    ``attempts`` counts the deliveries since it was stored.
    """
    properties = parse_properties(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    origin = offset_message_id(message.store_host, message.log_offset)
    properties.setdefault(ORIGIN_MESSAGE_ID, origin)
    # It is already committed, and its delay is over.
    for name in (TRAN_MSG, DELAY):
        properties.pop(name, None)
    packed = format_properties(properties)
    unique_key, keys, tags = index_facts(packed)
    return SentMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=packed,
        tags=tags,
        keys=keys,
        unique_key=unique_key,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_at_ms=message.born_at_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times + attempts,
        deliver_at_ms=deliver_at_ms,
    )
