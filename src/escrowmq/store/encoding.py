"""Encoding of messages into the bytes and facts that a frame holds.

The encoder also checks limits, at almost no cost for valid messages. It refuses a message before
anything is applied or written.
"""

from __future__ import annotations

from itertools import chain
from struct import error as StructError  # noqa: N812 - it is a class, whatever its case
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.protocol.limits import BODY_BYTES_MAX, validate
from escrowmq.protocol.properties import index_facts, tags_code
from escrowmq.protocol.stored_columns import encode_columns
from escrowmq.protocol.stored_message import encode_many, lay_out, skim
from escrowmq.store.frames import open_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.model.message import Message
    from escrowmq.model.message_columns import MessageColumns
    from escrowmq.transaction.records import Placed


class MessageEncoder:
    """Encoder of messages for one broker address."""

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
        """Return a frame with these messages, and the log offset of each.

        ``at`` is the log offset of the first message and the store time. This method fills
        ``placed``. It raises RequestRefused if a message breaks a limit.
        """
        try:
            encoded = self._encode(messages, queue_offsets, at, bits, placed)
        except (StructError, AssertionError):
            # The layout cannot hold a number or an address; ``validate`` raises the right error.
            for message in messages:
                validate(message)
            raise
        if max(placed.sizes) > BODY_BYTES_MAX:
            for message in messages:
                validate(message)
        return encoded

    def encode_one(
        self, message: Message, queue_offset: int, at: tuple[int, int], bits: int, placed: Placed
    ) -> tuple[bytes, bytes, bytes]:
        """``encode`` for the most common frame, with one message; return its parts, in order."""
        try:
            head, rest, size, crc = lay_out(message, queue_offset, *at, self._store_host, bits)
        except (StructError, AssertionError):
            # The layout cannot hold a number or an address; ``validate`` raises the right error.
            validate(message)
            raise
        if size > BODY_BYTES_MAX:
            validate(message)
        keys = message.keys
        placed.sizes = [size]
        placed.crcs = [crc]
        placed.tags = [tags_code(message.tags)]
        placed.unique = [crc32(message.unique_key.encode())]
        if keys:
            placed.keys = [crc32(key.encode()) for key in keys]
            placed.keyed = [0] * len(keys)
        return head, message.body, rest

    def encode_columns(
        self,
        messages: MessageColumns,
        first_queue_offset: int,
        at: tuple[int, int],
        bits: int,
        placed: Placed,
    ) -> tuple[bytearray, list[int]]:
        """``encode`` for very many messages, which must be within all limits."""
        pieces, sizes, placed.crcs, log_offsets = encode_columns(
            messages, first_queue_offset, at, self._store_host, bits
        )
        placed.sizes = sizes.tolist()
        placed.tags = messages.tags
        placed.unique, placed.keys, placed.keyed = messages.unique, messages.keys, messages.keyed
        return open_frame(pieces), log_offsets.tolist()

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
        tags = [message.tags for message in messages]
        if tags.count(tags[0]) == len(tags):
            placed.tags = [tags_code(tags[0])] * len(tags)
        else:
            placed.tags = list(map(tags_code, tags))
        _note_keys(
            placed,
            [message.unique_key for message in messages],
            [message.keys for message in messages],
        )
        return frame, log_offsets


def note_copied(placed: Placed, records: Iterable[bytes]) -> None:
    """Fill in the keys of stored messages that are written again unchanged."""
    facts = [index_facts(skim(record)[-1]) for record in records]
    _note_keys(placed, [unique_key for unique_key, _, _ in facts], [keys for _, keys, _ in facts])


def note_transaction(placed: Placed, transaction_id: str) -> None:
    """Index the first message by its transaction id too."""
    hashed = crc32(transaction_id.encode())
    if hashed != placed.unique[0]:
        placed.keys.append(hashed)
        placed.keyed.append(0)


def _note_keys(placed: Placed, unique_keys: list[str], keys: list[tuple[str, ...]]) -> None:
    placed.unique = _hashes(unique_keys)
    placed.keys = _hashes(chain.from_iterable(keys))
    if len(placed.keys) == len(keys) and () not in keys:
        placed.keyed = list(range(len(keys)))
    else:
        placed.keyed = [number for number, its_keys in enumerate(keys) for _ in its_keys]


def _hashes(keys: Iterable[str]) -> list[int]:
    return list(map(crc32, map(str.encode, keys)))
