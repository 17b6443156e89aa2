"""Which program listens at an address that does not answer as a broker or a name server does.

Both ports of a broker answer every request, so a client needs one of them and finds the other.  An
address of something else gets one error from the SDK, the command line and Spark, which says what
is there by the first bytes of its answer.
"""

from __future__ import annotations

from escrowmq.model.errors import ProtocolViolation

HEAD_BYTES = 8
"""Bytes of an answer that tell one kind from another."""

_TLS_ALERT = b"\x15\x03"
_HTTP2_SETTINGS = 4
_HTTP2_SETTING_BYTES = 6

ADVICE = "give the address of the broker (port 10911) or of its name server (port 9876)"
PEERS = {
    "http": "an HTTP server listens there",
    "grpc": "a gRPC server listens there, which EscrowMQ does not speak yet",
    "tls": "a TLS server listens there, which EscrowMQ does not speak yet",
    "other": "another program listens there",
}


def kind_of(head: bytes, *, is_malformed: bool) -> str:
    """Which of ``PEERS`` begins its answer so; empty if nothing tells that it is not a broker.

    This is for a peer that has not sent a whole frame.  The first four bytes of a frame of ours may
    be those of an HTTP/2 frame.  The next four tell them apart: here they hold the length of a
    header, which is never 0; there they hold flags and a stream, which are 0.
    """
    if head.startswith(b"HTTP"):
        return "http"
    if head.startswith(_TLS_ALERT):
        return "tls"
    is_http2 = len(head) >= HEAD_BYTES and head[:2] == bytes(2) and head[4:HEAD_BYTES] == bytes(4)
    if is_http2 and head[3] == _HTTP2_SETTINGS and head[2] % _HTTP2_SETTING_BYTES == 0:
        return "grpc"
    return "other" if is_malformed else ""


def not_a_broker(address: str, kind: str, cause: str) -> ProtocolViolation:
    """The error for an address that is neither a broker's nor a name server's."""
    return ProtocolViolation(
        "peer_not_broker", f"{PEERS[kind]}; {ADVICE}", address=address, cause=cause
    )
