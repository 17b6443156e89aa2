"""Recognition of a server at an address that does not answer like a broker or a name server.

Both ports of a broker answer every request, so a client needs one of them and finds the other. For
the address of any other program, the SDK, the command line and Spark raise the same error. It names
the kind of server, which the first bytes of the response show.
"""

from __future__ import annotations

from escrowmq.client.network.tls import NO_CERTIFICATE
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused

HEAD_BYTES = 8
"""Number of first bytes of a response that distinguish the kinds of servers."""

_TLS_ALERT = b"\x15\x03"
_HTTP2_SETTINGS = 4
_HTTP2_SETTING_BYTES = 6

ADVICE = "give the address of the broker (port 10911) or of its name server (port 9876)"
#: The kind of a server that ended a TLS connection without an answer.
TLS_REFUSED = "tls_refused"
PEERS = {
    "http": "an HTTP server listens there",
    "grpc": "a gRPC server listens there, which EscrowMQ does not speak yet",
    "tls": "a TLS server listens there, and TLS is off here",
    "other": "another program listens there",
}


def kind_of(head: bytes, *, is_malformed: bool) -> str:
    """Return the key in ``PEERS`` for these first bytes; empty if the peer may be a broker.

    Call this for a peer that has not sent a complete frame. The first four bytes of our frame may
    equal those of an HTTP/2 frame. The next four distinguish them: in our frame they hold the
    length of a header, which is never 0; in HTTP/2 they hold flags and a stream, which are 0.
    """
    if head.startswith(b"HTTP"):
        return "http"
    if head.startswith(_TLS_ALERT):
        return "tls"
    is_http2 = len(head) >= HEAD_BYTES and head[:2] == bytes(2) and head[4:HEAD_BYTES] == bytes(4)
    if is_http2 and head[3] == _HTTP2_SETTINGS and head[2] % _HTTP2_SETTING_BYTES == 0:
        return "grpc"
    return "other" if is_malformed else ""


def not_a_broker(address: str, kind: str, cause: str) -> EscrowError:
    """Return the error for an address that is neither a broker's nor a name server's."""
    if kind == TLS_REFUSED:
        return RequestRefused("tls_failed", NO_CERTIFICATE, address=address, cause=cause)
    return ProtocolViolation(
        "peer_not_broker", f"{PEERS[kind]}; {ADVICE}", address=address, cause=cause
    )
