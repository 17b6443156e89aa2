"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): names, layout, and frames to send.

A frame has a head of 9 bytes (size 3, kind 1, flags 1, stream 4) and a payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct

from escrowmq.protocol.http2.violations import Http2Error, violation

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

FRAME_HEAD = Struct(">IBI")
"""Size and kind in one word, flags, stream."""
FRAME_HEAD_BYTES = 9
FRAME_BYTES_DEFAULT = 16_384
FRAME_BYTES_LIMIT = 2**24 - 1
WINDOW_DEFAULT = 65_535
WINDOW_MAX = 2**31 - 1
STREAM_ID_MAX = 2**31 - 1
PING_BYTES = 8

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20
_PRIORITY_BYTES = 5

_WORD = Struct(">I")
_SETTING = Struct(">HI")
_TWO_WORDS = Struct(">II")


class FrameKind(IntEnum):
    """Kinds of frames."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Http2Setting(IntEnum):
    """Settings that we send or read."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def frame(kind: FrameKind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings_frame(values: Mapping[Http2Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return frame(FrameKind.SETTINGS, 0, 0, payload)


SETTINGS_ACK = frame(FrameKind.SETTINGS, ACK, 0)


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(FrameKind.WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, error: Http2Error) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(FrameKind.RST_STREAM, 0, stream_id, _WORD.pack(error))


def goaway(last_stream_id: int, error: Http2Error, text: str = "") -> bytes:
    """Return a GOAWAY frame."""
    payload = _TWO_WORDS.pack(last_stream_id, error) + text.encode()
    return frame(FrameKind.GOAWAY, 0, 0, payload)


def read_settings(payload: bytes) -> dict[int, int]:
    """Return the settings of a frame, checked; the last value of a setting counts."""
    if len(payload) % _SETTING.size:
        raise violation(
            Http2Error.FRAME_SIZE_ERROR, "SETTINGS have 6 bytes each", bytes=len(payload)
        )
    values = dict(_SETTING.iter_unpack(payload))
    if values.get(Http2Setting.ENABLE_PUSH, 0) not in (0, 1):
        raise violation(Http2Error.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
    if values.get(Http2Setting.INITIAL_WINDOW_SIZE, 0) > WINDOW_MAX:
        raise violation(Http2Error.FLOW_CONTROL_ERROR, "the initial window is too large")
    frame_bytes = values.get(Http2Setting.MAX_FRAME_SIZE, FRAME_BYTES_DEFAULT)
    if not FRAME_BYTES_DEFAULT <= frame_bytes <= FRAME_BYTES_LIMIT:
        raise violation(
            Http2Error.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range", value=frame_bytes
        )
    return values


def without_padding(payload: bytes) -> bytes:
    """Return the payload of a padded frame without its padding."""
    if not payload:
        raise violation(Http2Error.FRAME_SIZE_ERROR, "a padded frame is empty")
    padding = payload[0]
    if padding >= len(payload):
        raise violation(Http2Error.PROTOCOL_ERROR, "the padding exceeds its frame")
    return payload[1 : len(payload) - padding]


def without_priority(payload: bytes) -> tuple[int, bytes]:
    """Return the stream that a HEADERS frame depends on, and the header block."""
    if len(payload) < _PRIORITY_BYTES:
        raise violation(Http2Error.FRAME_SIZE_ERROR, "a priority must have 5 bytes")
    return dependency(payload), payload[_PRIORITY_BYTES:]


def dependency(payload: bytes) -> int:
    """Return the stream at the start of a priority."""
    return int(_WORD.unpack_from(payload)[0]) & STREAM_ID_MAX


def read_word(payload: bytes, what: FrameKind) -> int:
    """Return the payload of a frame that has 4 bytes."""
    if len(payload) != _WORD.size:
        raise violation(
            Http2Error.FRAME_SIZE_ERROR, f"{what.name} must have 4 bytes", bytes=len(payload)
        )
    return int(_WORD.unpack(payload)[0])
