"""Fixed layout of the two most common frames: a lone half message, and its decision.

Most of a log is transactions of one message. A replay does not parse their records one by one: it
collects thousands of them and reads them as columns. The first byte is one that MessagePack never
uses, so no other record starts with it.

    position  size  of a half message
           0     1  0xC1
           1     1  1
           2     2  number of further keys
           4     4  origin
           8     8  half offset
          16     8  next check at, ms
          24     8  number of the request, -1 from a stock client
          32     4  queue
          36     4  size
          40     4  checksum
          44     4  hash of the tags, signed
          48     4  hash of the unique key
          52     4  hash of the transaction id
          56   4 n  hashes of further keys
           -     -  transaction id

    position  size  of a decision
           0     1  0xC1
           1     1  2
           2     1  state
           3     1  0
           4     4  queue, -1 if rolled back
           8     8  half offset
          16     8  queue offset, -1 if rolled back
          24     -  by whom

Integers are little-endian. Texts are UTF-8 and extend to the end of the record.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, unpack_from
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from escrowmq.transaction.records import Decided, Placed, Prepared, Span

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Bytes
    from escrowmq.transaction.records import Record

MARK = 0xC1
HALF_KIND = 1
DECISION_KIND = 2

HALF = np.dtype(
    [
        ("mark", "u1"),
        ("kind", "u1"),
        ("key_count", "<u2"),
        ("origin", "<u4"),
        ("row", "<i8"),
        ("next_at_ms", "<i8"),
        ("number", "<i8"),
        ("queue", "<u4"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("tags", "<i4"),
        ("unique", "<u4"),
        ("id_hash", "<u4"),
    ]
)
DECISION = np.dtype(
    [
        ("mark", "u1"),
        ("kind", "u1"),
        ("state", "u1"),
        ("zero", "u1"),
        ("queue", "<i4"),
        ("row", "<i8"),
        ("queue_offset", "<i8"),
    ]
)
HALF_BYTES = HALF.itemsize
DECISION_BYTES = DECISION.itemsize

_HALF = Struct("<BBHIqqqIIIiII")
_DECISION = Struct("<BBBBiqq")
assert (_HALF.size, _DECISION.size) == (HALF_BYTES, DECISION_BYTES)

#: Unpacks number of keys, size and checksum of a half message.
unpack_vouched = Struct("<2xH32xII").unpack_from


def encode(records: tuple[Record, ...]) -> bytes | None:
    """Return these records in the fixed layout; None if they do not fit it."""
    if len(records) != 1:
        return None
    record = records[0]
    if type(record) is Prepared:
        return _encode_half(record)
    if type(record) is Decided:
        return _encode_decision(record)
    return None


def _encode_half(record: Prepared) -> bytes | None:
    placed, row = record.placed, record.first
    if len(placed.sizes) != 1 or record.head != row or record.deliver_after_ms:
        return None
    keys = placed.keys
    transaction_id = record.transaction_id.encode()
    head = _with_keys(len(keys)).pack(
        MARK,
        HALF_KIND,
        len(keys),
        record.origin,
        row,
        record.next_check_at_ms,
        record.number,
        placed.queues[0],
        placed.sizes[0],
        placed.crcs[0],
        placed.tags[0],
        placed.unique[0],
        crc32(transaction_id),
        *keys,
    )
    return head + transaction_id


@lru_cache(maxsize=64)
def _with_keys(count: int) -> Struct:
    return Struct(f"{_HALF.format}{count}I")


def _encode_decision(record: Decided) -> bytes | None:
    row, given = record.head, record.given
    if record.ranges != [(row, 1)] or record.waiting or record.is_forced:
        return None
    queue, queue_offset = (given[0].queue, given[0].first) if given else (-1, -1)
    head = _DECISION.pack(MARK, DECISION_KIND, record.state, 0, queue, row, queue_offset)
    return head + record.by.encode()


def transaction_id(tail: Bytes) -> str:
    """Return only the transaction id of a half message."""
    key_count = tail[2] | tail[3] << 8
    return str(tail[HALF_BYTES + 4 * key_count :], "utf-8")


def decode(tail: Bytes) -> Record | None:
    """Decode a record; return None if its kind is unknown."""
    if tail[1] == DECISION_KIND:
        _, _, state, _, queue, row, queue_offset = _DECISION.unpack_from(tail)
        given = [] if queue < 0 else [Span(queue, queue_offset, 1)]
        by = str(tail[DECISION_BYTES:], "utf-8")
        return Decided(row, state, by, [(row, 1)], given, [])
    if tail[1] != HALF_KIND:
        return None
    _, _, key_count, origin, row, next_at_ms, number, queue, size, crc, tags, unique, _ = (
        _HALF.unpack_from(tail)
    )
    return Prepared(
        first=row,
        head=row,
        origin=origin,
        transaction_id=transaction_id(tail),
        number=number,
        next_check_at_ms=next_at_ms,
        deliver_after_ms=[],
        placed=Placed(
            queues=[queue],
            sizes=[size],
            crcs=[crc],
            tags=[tags],
            unique=[unique],
            keys=list(unpack_from(f"<{key_count}I", tail, HALF_BYTES)),
            keyed=[0] * key_count,
        ),
    )
