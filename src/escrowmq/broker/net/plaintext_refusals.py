"""What each door answers to a request without TLS where TLS is required."""

from __future__ import annotations

from http import HTTPStatus

from escrowmq.broker.net.http import encode, text
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.http2.frames import goaway, settings_frame
from escrowmq.protocol.http2.violations import Http2Error
from escrowmq.protocol.native.headers import NativeRefusal
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import decode_frame, encode_response

REFUSED = RequestRefused(
    "tls_required", "this broker takes connections with TLS only: turn on TLS in the client"
)
_HEAD_END = b"\r\n\r\n"
#: The words before a remoting frame's header: the sizes of the frame and of the header.
_WORDS_BYTES = 8


def refuse_remoting(received: bytes) -> bytes | None:
    """Answer the first request with an error; its body need not have arrived."""
    head_end = _WORDS_BYTES + int.from_bytes(received[5:_WORDS_BYTES], "big")
    if len(received) < max(head_end, _WORDS_BYTES):
        return None
    try:
        request = decode_frame(received[4:head_end])
    except ProtocolViolation:
        return b""
    if request.is_one_way:
        return b""
    refusal = NativeRefusal(error=REFUSED.code, kind=type(REFUSED).__name__)
    code = ResponseCode.NO_PERMISSION
    return encode_response(request, code, header=refusal, remark=str(REFUSED))


def refuse_http(received: bytes) -> bytes | None:
    """Answer a request as soon as its head has come."""
    if _HEAD_END not in received:
        return None
    return encode(text(f"{REFUSED} (https://)", HTTPStatus.BAD_REQUEST), is_head=False)


def refuse_grpc(received: bytes) -> bytes | None:
    """Tell the client at once; HTTP/2 has a code for this."""
    del received
    return settings_frame({}) + goaway(0, Http2Error.INADEQUATE_SECURITY, str(REFUSED))
