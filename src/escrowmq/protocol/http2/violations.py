"""Error codes of HTTP/2, and the exception for bytes that end a connection."""

from __future__ import annotations

from enum import IntEnum

from escrowmq.model.errors import ProtocolViolation


class Http2Error(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Violation(ProtocolViolation):
    """The peer broke a rule of HTTP/2, so the connection cannot go on."""

    def __init__(
        self, code: str, /, message: str = "", *, error: Http2Error, **fields: object
    ) -> None:
        super().__init__(code, message, error=error.name, **fields)
        self.error = error


def violation(error: Http2Error, message: str, **fields: object) -> Http2Violation:
    """Return the error for bytes that HTTP/2 does not allow."""
    return Http2Violation("http2_malformed", message, error=error, **fields)
