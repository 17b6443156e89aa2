"""Decompression of message bodies."""

from __future__ import annotations

import zlib

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.protocol.message.compression import INFLATED_BYTES_MAX, ZLIB_TYPES, compression_type

UNDECODABLE = "undecodable_body"
TOO_LARGE = "too_large"

#: By the code of the compression.
_STREAMS = {1: "lz4", 2: "zstd"}


def inflated(body: bytes, sys_flag: int) -> tuple[bytes, str | None]:
    """The decompressed body and None, or the unchanged body and why it cannot be decompressed."""
    kind = compression_type(sys_flag)
    try:
        if kind in ZLIB_TYPES:
            found = _inflate(body)
        elif kind in _STREAMS:
            with pa.input_stream(pa.py_buffer(body), compression=_STREAMS[kind]) as stream:
                found = stream.read(INFLATED_BYTES_MAX + 1)
        else:
            return body, UNDECODABLE
    except (zlib.error, OSError, pa.ArrowException, EOFError):
        return body, UNDECODABLE
    return (body, TOO_LARGE) if len(found) > INFLATED_BYTES_MAX else (found, None)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    found = inflater.decompress(body, INFLATED_BYTES_MAX + 1)
    if not inflater.eof and len(found) <= INFLATED_BYTES_MAX:
        raise EOFError("cut short")
    return found
