"""From messages to the bytes and facts that a frame holds of them.

Limits are checked on the way, at next to no cost for messages that keep them: nothing has been
applied or written when a message is refused here.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812 - it is a class, whatever its case
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.protocol.limits import BODY_BYTES_MAX, validate
from escrowmq.protocol.properties import tags_code
from escrowmq.protocol.stored_message import encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.model.message import Message
    from escrowmq.transaction.records import Placed


class MessageEncoder:
    """Lays messages out for one broker address."""

    def __init__(self, store_host: bytes) -> None:
        self._store_host = store_host

    def encode(
        self,
        messages: tuple[Message, ...],
        queue_offsets: Iterable[int],
        at: tuple[int, int],
        bits: int,
        placed: Placed,
    ) -> tuple[list[bytes], list[int]]:
        """Messages as bytes and where each will be, from log offset and time ``at`` on.

        Fills ``placed``.  RequestRefused if a message breaks a limit.
        """
        try:
            encoded = self._encode(messages, queue_offsets, at, bits, placed)
        except (StructError, AssertionError):
            # A number or an address that the layout cannot hold.
            for message in messages:
                validate(message)
            raise
        if max(placed.sizes) > BODY_BYTES_MAX:
            for message in messages:
                validate(message)
        return encoded

    def _encode(
        self,
        messages: tuple[Message, ...],
        queue_offsets: Iterable[int],
        at: tuple[int, int],
        bits: int,
        placed: Placed,
    ) -> tuple[list[bytes], list[int]]:
        offset, at_ms = at
        host = self._store_host
        content = []
        log_offsets = []
        sizes, crcs, tags, keys = [], [], [], []
        for message, queue_offset in zip(messages, queue_offsets, strict=True):
            data = encode(message, queue_offset, offset, at_ms, host, bits)
            content.append(data)
            size = len(data)
            sizes.append(size)
            crcs.append(crc32(data))
            tags.append(tags_code(message.tags))
            hashes = [crc32(message.unique_key.encode())]
            for key in message.keys:
                hashes.append(crc32(key.encode()))
            keys.append(hashes)
            log_offsets.append(offset)
            offset += size
        placed.sizes, placed.crcs, placed.tags, placed.keys = sizes, crcs, tags, keys
        return content, log_offsets
