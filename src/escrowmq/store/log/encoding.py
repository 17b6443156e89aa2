"""Encoding of messages into the bytes and facts that a frame holds.

The encoder also checks limits, at almost no cost for valid messages. It refuses a message before
anything is applied or written.
"""

from __future__ import annotations

from itertools import chain
from struct import error as StructError  # noqa: N812 - it is a class, whatever its case
from typing import TYPE_CHECKING, TypeVar, assert_never
from zlib import crc32

from msgspec.structs import replace

from escrowmq.protocol.message.limits import BODY_BYTES_MAX, validate
from escrowmq.protocol.message.properties import index_facts, tags_code
from escrowmq.protocol.message.stored_columns import encode_columns
from escrowmq.protocol.message.stored_message import SYS_PREPARED, encode_many, lay_out, skim
from escrowmq.store.log.frames import open_frame
from escrowmq.transaction.records import Carried, NewRecord, Placed, Prepared, Scheduled, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from escrowmq.model.message import SentMessage
    from escrowmq.model.message_columns import MessageColumns


LoneT = TypeVar("LoneT", bound=Prepared | Stored)


class MessageEncoder:
    """Encoder of messages for one broker address.

    It takes the record that the core made and returns the one to write, which also says where the
    bytes of each message are and by which keys it is found. ``at`` is the log offset of the first
    message and the store time. A message that breaks a limit raises RequestRefused.
    """

    def __init__(self, store_host: bytes) -> None:
        self._store_host = store_host

    def encode(
        self,
        messages: tuple[SentMessage, ...] | MessageColumns,
        record: NewRecord,
        at: tuple[int, int],
    ) -> tuple[bytearray, NewRecord, list[int]]:
        """Return a frame with these messages, their record, and the log offset of each."""
        queues, bits, transaction_id = record.placed.queues, 0, None
        queue_offsets: Sequence[int]
        match record:
            case Stored():
                queue_offsets = record.queue_offsets
            case Scheduled():
                queue_offsets = range(record.first, record.first + len(queues))
            case Prepared():
                queue_offsets = range(record.first, record.first + len(queues))
                bits, transaction_id = SYS_PREPARED, record.transaction_id
            case _:
                assert_never(record)
        pieces: Iterable[bytes]
        if isinstance(messages, tuple):
            pieces, sizes, crcs, log_offsets = self._encode_each(messages, queue_offsets, at, bits)
            tags = [message.tags for message in messages]
            if tags.count(tags[0]) == len(tags):
                codes = [tags_code(tags[0])] * len(tags)
            else:
                codes = list(map(tags_code, tags))
            hashes = _hashes_of(
                [message.unique_key for message in messages],
                [message.keys for message in messages],
            )
        else:
            # Columns hold very many messages; the broker checked them as it read the request.
            pieces, columns, crcs, offsets = encode_columns(
                messages, queue_offsets[0], at, self._store_host, bits
            )
            sizes, log_offsets, codes = columns.tolist(), offsets.tolist(), messages.tags
            hashes = messages.unique, messages.keys, messages.keyed
        placed = Placed(queues, sizes, crcs, codes, *hashes)
        if transaction_id is not None:
            placed = _with_id(placed, transaction_id)
        return open_frame(pieces), replace(record, placed=placed), log_offsets

    def encode_one(
        self, message: SentMessage, record: LoneT, at: tuple[int, int]
    ) -> tuple[tuple[bytes, bytes, bytes], LoneT]:
        """``encode`` for the most common records, with one message; return its parts, in order."""
        host, name = self._store_host, message.unique_key
        if isinstance(record, Prepared):
            queue_offset, bits, name = record.first, SYS_PREPARED, record.transaction_id
        else:
            queue_offset, bits = record.queue_offsets[0], 0
        try:
            head, rest, size, crc = lay_out(message, queue_offset, *at, host, bits)
        except (StructError, AssertionError):
            # The layout cannot hold a number or an address; ``validate`` raises the right error.
            validate(message)
            raise
        if size > BODY_BYTES_MAX:
            validate(message)
        unique = crc32(message.unique_key.encode())
        keys = [crc32(key.encode()) for key in message.keys] if message.keys else []
        hashed = unique if name == message.unique_key else crc32(name.encode())
        if hashed != unique:
            keys.append(hashed)
        placed = Placed(
            record.placed.queues,
            [size],
            [crc],
            [tags_code(message.tags)],
            [unique],
            keys,
            [0] * len(keys),
        )
        return (head, message.body, rest), replace(record, placed=placed)

    def _encode_each(
        self,
        messages: tuple[SentMessage, ...],
        queue_offsets: Iterable[int],
        at: tuple[int, int],
        bits: int,
    ) -> tuple[Iterable[bytes], list[int], list[int], list[int]]:
        try:
            encoded = encode_many(messages, queue_offsets, at, self._store_host, bits)
        except (StructError, AssertionError):
            # The layout cannot hold a number or an address; ``validate`` raises the right error.
            for message in messages:
                validate(message)
            raise
        if max(encoded[1]) > BODY_BYTES_MAX:
            for message in messages:
                validate(message)
        return encoded


def copied(record: Carried, copies: Iterable[bytes]) -> Carried:
    """Return the record of stored messages that are written again unchanged, with their keys."""
    facts = [index_facts(skim(copy)[-1]) for copy in copies]
    unique, keys, keyed = _hashes_of([fact[0] for fact in facts], [fact[1] for fact in facts])
    placed = replace(record.placed, unique=unique, keys=keys, keyed=keyed)
    return replace(record, placed=_with_id(placed, record.rows[0].transaction_id))


def _with_id(placed: Placed, transaction_id: str) -> Placed:
    """Index the first message by its transaction id too."""
    hashed = crc32(transaction_id.encode())
    if hashed == placed.unique[0]:
        return placed
    return replace(placed, keys=[*placed.keys, hashed], keyed=[*placed.keyed, 0])


def _hashes_of(
    unique_keys: list[str], keys: list[tuple[str, ...]]
) -> tuple[list[int], list[int], list[int]]:
    """Return hashes of the unique keys and of all others, and the message of each of the others."""
    hashes = _hashes(chain.from_iterable(keys))
    if len(hashes) == len(keys) and () not in keys:
        keyed = list(range(len(keys)))
    else:
        keyed = [number for number, its_keys in enumerate(keys) for _ in its_keys]
    return _hashes(unique_keys), hashes, keyed


def _hashes(keys: Iterable[str]) -> list[int]:
    return list(map(crc32, map(str.encode, keys)))
