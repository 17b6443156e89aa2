"""Decompression of message bodies."""

from __future__ import annotations

import zlib

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.protocol.limits import BODY_BYTES_MAX

#: A body of a few bytes could otherwise expand to gigabytes.
INFLATED_BYTES_MAX = 4 * BODY_BYTES_MAX

UNDECODABLE = "undecodable_body"
TOO_LARGE = "too_large"

_TYPE_SHIFT = 8
_TYPE_MASK = 0x7
#: By the bits that name the compression. Clients before 5.0 write 0.
_STREAMS = {1: "lz4", 2: "zstd"}
_ZLIB = (0, 3)


def inflated(body: bytes, sys_flag: int) -> tuple[bytes, str | None]:
    """The decompressed body and None, or the unchanged body and why it cannot be decompressed."""
    kind = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
    try:
        if kind in _ZLIB:
            found = _inflate(body)
        elif kind in _STREAMS:
            with pa.input_stream(pa.py_buffer(body), compression=_STREAMS[kind]) as stream:
                found = stream.read(INFLATED_BYTES_MAX + 1)
        else:
            return body, UNDECODABLE
    except (zlib.error, OSError, pa.ArrowException, EOFError):
        return body, UNDECODABLE
    if len(found) > INFLATED_BYTES_MAX:
        return body, TOO_LARGE
    return found, None


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    found = inflater.decompress(body, INFLATED_BYTES_MAX + 1)
    if not inflater.eof and len(found) <= INFLATED_BYTES_MAX:
        raise EOFError("cut short")
    return found
