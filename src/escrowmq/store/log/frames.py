"""Frames: the unit of atomicity in the commit log.

A frame holds the result of one command: its messages, then the records that describe them.

    position  size  field
           0     4  magic "EMQF"
           4     2  version (1)
           6     2  reserved, 0
           8     4  length of the whole frame
          12     4  where the records start, from the start of the frame
          16     8  log offset of this frame
          24     8  store time, ms
          32     8  log offset below which everything was known to be flushed when this was written
          40     4  checksum: CRC-32 of bytes 0 to 40 and of the records, seeded by the store
          44     -  messages in RocketMQ's stored layout, one after the other
           -     -  records: one MessagePack array of arrays, or a lone one in fixed layout

Integers are little-endian; inside a message they are RocketMQ's, big-endian. The records hold the
size and a checksum of every message, so the frame's checksum covers the whole frame, and a single
message can be verified without reading the others. The seed is created with the store, so the store
never accepts a frame of another store, or one that a producer hides in a message body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from struct import error as StructError  # noqa: N812 - a class, whatever its case
from zlib import crc32

import msgspec
import numpy as np

from escrowmq.model.errors import StoreUnusable
from escrowmq.protocol.message.stored_message import record_crc
from escrowmq.store.disk.disk import Bytes
from escrowmq.store.disk.rows import Rows, windows
from escrowmq.store.log import lone_frames
from escrowmq.transaction.records import BRINGS_MESSAGES, Lost, Record

MAGIC = b"EMQF"
VERSION = 1
HEAD_BYTES = 44
CHECKSUM_AT = 40
#: The largest transaction (16 MiB of bodies and properties) with its headers fits easily.
FRAME_BYTES_MAX = 64 * 1024 * 1024

#: The head as a numpy type, for bulk reads.
FRAME_HEAD = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u2"),
        ("reserved", "<u2"),
        ("length", "<u4"),
        ("records_at", "<u4"),
        ("log_offset", "<i8"),
        ("stored_at_ms", "<i8"),
        ("flushed", "<i8"),
        ("checksum", "<u4"),
    ]
)
assert FRAME_HEAD.itemsize == HEAD_BYTES

_HEAD = struct.Struct("<4sHHIIQQQ")
_START = struct.Struct("<4sHHII")
_CHECKSUM = struct.Struct("<I")

_NO_HEAD = bytes(HEAD_BYTES)
_encode_records = msgspec.msgpack.Encoder().encode
_MAGIC = int.from_bytes(MAGIC, "little")
_unpack_length = struct.Struct("<8xI").unpack_from
_unpack_head = struct.Struct("<4sH2xIIQQQI").unpack_from
_decode_records = msgspec.msgpack.Decoder(list[Record]).decode


class Frame(msgspec.Struct, frozen=True):
    """An intact frame."""

    log_offset: int
    length: int
    records_at: int
    stored_at_ms: int
    flushed: int
    records: list[Record]

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return self.log_offset + self.length

    @property
    def messages(self) -> int:
        """The log offset of the first message."""
        return self.log_offset + HEAD_BYTES


def open_frame(messages: Iterable[bytes]) -> bytearray:
    """Return a frame with these messages, whole or in parts, and an empty head."""
    return bytearray().join((_NO_HEAD, *messages))


def close_frame(
    frame: bytearray, records: tuple[Record, ...], place: tuple[int, int, int], seed: int
) -> None:
    """Add records and head; ``place`` is log offset, store time and offset known as flushed."""
    tail = encode_records(records)
    records_at = len(frame)
    frame += tail
    length = len(frame)
    assert length <= FRAME_BYTES_MAX
    _HEAD.pack_into(frame, 0, MAGIC, VERSION, 0, length, records_at, *place)
    checksum = crc32(tail, crc32(frame[:CHECKSUM_AT], seed))
    _CHECKSUM.pack_into(frame, CHECKSUM_AT, checksum)


def whole_frame(
    messages: Iterable[bytes],
    messages_bytes: int,
    records: tuple[Record, ...],
    place: tuple[int, int, int],
    seed: int,
) -> bytes:
    """``open_frame`` and ``close_frame`` in one, for frames with few messages or none."""
    tail = encode_records(records)
    records_at = HEAD_BYTES + messages_bytes
    length = records_at + len(tail)
    assert length <= FRAME_BYTES_MAX
    head = _HEAD.pack(MAGIC, VERSION, 0, length, records_at, *place)
    checksum = _CHECKSUM.pack(crc32(tail, crc32(head, seed)))
    return b"".join((head, checksum, *messages, tail))


#: Log offset, length, where the records start, store time, offset known as flushed, and the bytes
#: of the records.
Vouched = tuple[int, int, int, int, int, Bytes]


def read_frame(data: Bytes, at: int, log_offset: int, seed: int) -> Frame | None:
    """Return the intact frame at ``data[at:]``, which is at ``log_offset``, or None if it is bad.

    A frame that ends beyond ``data`` counts as bad: the caller must pass enough bytes.
    """
    vouched = next(each_vouched(data, at, log_offset, seed), None)
    if vouched is None:
        return None
    _, length, records_at, stored_at_ms, flushed, tail = vouched
    records = decode_records(tail, log_offset)
    if not are_intact(data, at + HEAD_BYTES, at + records_at, records):
        return None
    return Frame(log_offset, length, records_at, stored_at_ms, flushed, records)


def each_vouched(data: Bytes, at: int, log_offset: int, seed: int) -> Iterator[Vouched]:
    """Yield consecutive frames, up to the first bad one.

    Only heads and records are verified; ``are_intact`` verifies the messages. A memoryview is
    fastest.
    """
    room = len(data) - at
    unpack, crc_of = _unpack_head, crc32
    while room >= HEAD_BYTES:
        magic, version, length, records_at, stated, stored_at_ms, flushed, checksum = unpack(
            data, at
        )
        if (
            magic != MAGIC
            or version != VERSION
            or stated != log_offset
            or not HEAD_BYTES <= records_at <= length <= room
            or flushed > log_offset
        ):
            return
        tail = data[at + records_at : at + length]
        if crc_of(tail, crc_of(data[at : at + CHECKSUM_AT], seed)) != checksum:
            return
        yield log_offset, length, records_at, stored_at_ms, flushed, tail
        at += length
        log_offset += length
        room -= length


def is_vouched(head: bytes, tail: bytes, log_offset: int, seed: int) -> bool:
    """Whether these are head and records of the frame at this offset; ignores its messages."""
    heads = np.frombuffer(head, dtype=FRAME_HEAD)
    is_ours = bool(are_ours(heads, np.array([log_offset]))[0])
    checksum = crc32(tail, crc32(head[:CHECKSUM_AT], seed))
    return is_ours and checksum == int(heads["checksum"][0])


def stated_heads(data: bytes, log_offset: int) -> tuple[Rows, Rows]:
    """Return where consecutive frames start, by the lengths in their heads, and these heads.

    The list ends before the first frame that is invalid or incomplete. No checksum is verified
    yet; ``are_vouched`` does that.
    """
    starts: list[int] = []
    add, unpack = starts.append, _unpack_length
    at, last = 0, len(data) - HEAD_BYTES
    while at <= last:
        add(at)
        # A wrong length does no harm: the checks below cut the list at a bad head.
        at += unpack(data, at)[0] or len(data)
    places = np.array(starts, dtype=np.int64)
    heads = windows(data, FRAME_HEAD, places)
    is_stated = are_ours(heads, places + log_offset) & (places + heads["length"] <= len(data))
    count = len(places) if is_stated.all() else int(np.argmin(is_stated))
    return places[:count], heads[:count]


def are_ours(heads: Rows, log_offsets: Rows) -> Rows:
    """Whether each head has the fields that a frame at its log offset must have."""
    is_ours: Rows = (
        (heads["magic"] == _MAGIC)
        & (heads["version"] == VERSION)
        & (heads["log_offset"] == log_offsets)
        & (heads["flushed"] <= log_offsets)
        & (heads["records_at"] >= HEAD_BYTES)
        & (heads["records_at"] <= heads["length"])
    )
    return is_ours


def are_vouched(data: bytes, places: Rows, heads: Rows, seed: int) -> Rows:
    """Whether the checksum over head and records is right, for each frame at these places."""
    borders = zip(
        places.tolist(),
        (places + heads["records_at"]).tolist(),
        (places + heads["length"]).tolist(),
        strict=True,
    )
    crc_of = crc32
    checksums = [
        crc_of(data[tail:end], crc_of(data[start : start + CHECKSUM_AT], seed))
        for start, tail, end in borders
    ]
    is_vouched: Rows = np.array(checksums, dtype=np.uint32) == heads["checksum"]
    return is_vouched


def encode_records(records: tuple[Record, ...]) -> bytes:
    """Return the bytes of a frame's records."""
    return lone_frames.encode(records) or _encode_records(records)


def decode_records(tail: Bytes, log_offset: int) -> list[Record]:
    """Return the records of the frame at this offset, whose checksum was verified."""
    try:
        if not tail or tail[0] != lone_frames.MARK:
            return _decode_records(tail)
        record = lone_frames.decode(tail)
        cause = f"kind {tail[1]}"
    except (msgspec.MsgspecError, StructError, IndexError, UnicodeDecodeError) as error:
        record, cause = None, str(error)
    if record is None:
        # The checksum is right, so these bytes are not damaged.
        raise StoreUnusable(
            "records_unknown",
            "a newer EscrowMQ wrote this log; use that one",
            log_offset=log_offset,
            cause=cause,
        )
    return [record]


def are_intact(data: Bytes, at: int, end: int, records: list[Record]) -> bool:
    """Whether the messages in ``data[at:end]`` match the sizes and checksums in the records."""
    for record in records:
        if type(record) is Lost:
            # Repair put this frame in the place of damage; its other bytes only fill the space.
            return True
        if type(record) in BRINGS_MESSAGES:
            placed = record.placed  # type: ignore[union-attr]
            for size, crc in zip(placed.sizes, placed.crcs, strict=True):
                if record_crc(data[at : at + size]) != crc:
                    return False
                at += size
    return at == end


class StatedHead(msgspec.Struct, frozen=True, gc=False):
    """Unverified head fields of bytes that start like a frame."""

    version: int
    length: int
    records_at: int


def stated_head(data: Bytes, at: int = 0) -> StatedHead | None:
    """Return the head fields of the frame at ``data[at:]``, or None if it cannot be a frame."""
    if len(data) - at < HEAD_BYTES:
        return None
    magic, version, _, length, records_at = _START.unpack_from(data, at)
    if magic != MAGIC or not HEAD_BYTES <= records_at <= length <= FRAME_BYTES_MAX:
        return None
    return StatedHead(version, length, records_at)
