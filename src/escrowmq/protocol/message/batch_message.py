"""The body of SEND_BATCH_MESSAGE: consecutive messages of one topic.

Layout of a message, in big-endian order::

    size of the message               4
    magic and CRC                     8     ignored
    flag                              4
    body size, body                   4 + n
    properties size, properties       2 + n
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - struct.error is a class

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.properties import PROPERTIES_BYTES_MAX

#: More than any transaction may hold. The byte limit of a client's batch applies long before.
BATCH_MESSAGES_MAX = 65_536

_HEAD = Struct(">I8xiI")
_PROPERTIES_SIZE = Struct(">H")

BatchedMessage = tuple[int, bytes, bytes]
"""Flag, body and properties."""


def decode_batch(data: bytes) -> list[BatchedMessage]:
    """Decode all messages of a batch."""
    messages: list[BatchedMessage] = []
    at, end = 0, len(data)
    while at < end:
        if len(messages) >= BATCH_MESSAGES_MAX:
            raise _malformed("too many messages", at, messages_max=BATCH_MESSAGES_MAX)
        try:
            size, flag, body_bytes = _HEAD.unpack_from(data, at)
            body_at = at + _HEAD.size
            body_end = body_at + body_bytes
            (properties_bytes,) = _PROPERTIES_SIZE.unpack_from(data, body_end)
        except StructError:
            raise _malformed("truncated", at) from None
        message_end = at + size
        properties_at = body_end + _PROPERTIES_SIZE.size
        if (
            properties_bytes > PROPERTIES_BYTES_MAX
            or message_end != properties_at + properties_bytes
            or message_end > end
        ):
            raise _malformed(
                "sizes do not add up", at, size=size, body=body_bytes, properties=properties_bytes
            )
        messages.append((flag, data[body_at:body_end], data[properties_at:message_end]))
        at = message_end
    return messages


def _malformed(message: str, at: int, **fields: object) -> ProtocolViolation:
    return ProtocolViolation("batch_malformed", message, at=at, **fields)
