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
from escrowmq.protocol.stored_message import encode_many
from escrowmq.store.frames import open_frame

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
    ) -> tuple[bytearray, list[int]]:
        """A frame with these messages, and where each will be from log offset and time ``at`` on.

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
    ) -> tuple[bytearray, list[int]]:
        pieces, placed.sizes, placed.crcs, log_offsets = encode_many(
            messages, queue_offsets, at, self._store_host, bits
        )
        frame = open_frame(pieces)
        placed.tags = [tags_code(message.tags) for message in messages]
        placed.unique = list(map(crc32, map(str.encode, [m.unique_key for m in messages])))
        keys, keyed = [], []
        for number, message in enumerate(messages):
            for key in message.keys:
                keys.append(key)
                keyed.append(number)
        placed.keys, placed.keyed = list(map(crc32, map(str.encode, keys))), keyed
        return frame, log_offsets
