"""RocketMQ's rules for a message that is sent with a listener, checked before anything is sent.

They are those of ``Validators.checkMessage``. Other ways to send leave the topic to the broker, and
take an empty body.
"""

from __future__ import annotations

from escrowmq.client.messages.codecs import Codec
from escrowmq.client.messages.messages import Message, fill_in
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import TOPIC_CHARS_MAX, validate_topic
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS


def check_message(message: Message, codec: Codec) -> None:
    """Refuse a message that RocketMQ's clients refuse; encode its body and key."""
    if not isinstance(message, Message):
        raise RequestRefused("message_illegal", "give a Message", type=type(message).__name__)
    _check_topic(message.topic)
    fill_in(message, codec)
    if not message.wire(codec).body:
        raise RequestRefused(
            "body_empty", "RocketMQ's listener API takes no empty body", topic=message.topic
        )


def _check_topic(topic: str) -> None:
    if not isinstance(topic, str):
        raise RequestRefused("topic_illegal", "a topic is text", type=type(topic).__name__)
    validate_topic(topic)
    if len(topic) > TOPIC_CHARS_MAX:
        # A broker also takes longer names, for the topics of consumer groups.
        raise RequestRefused(
            "topic_illegal",
            topic=topic[:TOPIC_CHARS_MAX],
            chars=len(topic),
            chars_max=TOPIC_CHARS_MAX,
        )
    if topic in SYSTEM_TOPICS:
        raise RequestRefused("topic_of_system", "send to a topic of your own", topic=topic)
