"""Writes the body of SEND_BATCH_MESSAGE, which our SDK never sends."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

from escrowmq.protocol.message.batch_message import BatchedMessage


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Encode messages for ``decode_batch`` and for RocketMQ."""
    return b"".join(
        pack(">I8xiI", 22 + len(body) + len(properties), flag, len(body))
        + body
        + pack(">H", len(properties))
        + properties
        for flag, body, properties in messages
    )
