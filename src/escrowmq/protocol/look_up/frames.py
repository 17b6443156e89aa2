"""Frames between a broker and its look-up process: four bytes of length, then MessagePack."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.look_up.messages import LookUpCall, LookUpReply

CALL_BYTES_MAX = 16 * 1024 * 1024
"""Longest message to the process: 4,000 rows with names of 255 characters need 2 to 8 MiB."""

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""Longest message from the process. The broker decodes it on its event loop."""

TEXT_CHARS_MAX = 200
"""Longest text about a malformed message, which may quote a part of it."""

_LENGTH = struct.Struct(">I")

MessageT = TypeVar("MessageT")

_encoder = msgspec.msgpack.Encoder()


def encode_call(call: LookUpCall) -> bytes:
    """Encode the frame of a message to the process.

    Raises:
        RequestRefused: ``look_up_too_large``, if the message exceeds ``CALL_BYTES_MAX``.
    """
    return _framed(call, CALL_BYTES_MAX)


def encode_reply(reply: LookUpReply) -> bytes:
    """Encode the frame of a message to the broker, of at most ``REPLY_BYTES_MAX``."""
    return _framed(reply, REPLY_BYTES_MAX)


def _framed(message: LookUpCall | LookUpReply, bytes_max: int) -> bytes:
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    size = len(frame) - _LENGTH.size
    if size > bytes_max:
        raise RequestRefused(
            "look_up_too_large", "ask for fewer transactions", bytes=size, bytes_max=bytes_max
        )
    _LENGTH.pack_into(frame, 0, size)
    return bytes(frame)


class LookUpSplitter(Generic[MessageT]):
    """Splits bytes into messages, however they are cut into chunks.

    It buffers less than one frame between two chunks. After a violation the start of the next
    frame is unknown, so its user must end the connection.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT], *, bytes_max: int) -> None:
        self._decoder = decoder
        self._bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[MessageT]:
        """Yield all messages that this chunk completes. Exhaust the iterator before the next one.

        Raises:
            ProtocolViolation: ``look_up_malformed``; the text repeats nothing of the message.
        """
        self._rest += chunk
        at = 0
        try:
            while len(self._rest) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._rest, at)
                if size > self._bytes_max:
                    raise ProtocolViolation(
                        "look_up_malformed", bytes=size, bytes_max=self._bytes_max
                    )
                start, end = at + _LENGTH.size, at + _LENGTH.size + size
                if end > len(self._rest):
                    return
                at = end
                yield self._decoded(bytes(self._rest[start:end]))
        finally:
            del self._rest[:at]

    def _decoded(self, payload: bytes) -> MessageT:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # The error names a place, and at most an unknown tag or outcome; never a URL.
            raise ProtocolViolation("look_up_malformed", str(error)[:TEXT_CHARS_MAX]) from None


def call_splitter() -> LookUpSplitter[LookUpCall]:
    """Return a splitter for the process's input."""
    return LookUpSplitter(msgspec.msgpack.Decoder(LookUpCall), bytes_max=CALL_BYTES_MAX)


def reply_splitter() -> LookUpSplitter[LookUpReply]:
    """Return a splitter for the process's output."""
    return LookUpSplitter(msgspec.msgpack.Decoder(LookUpReply), bytes_max=REPLY_BYTES_MAX)
