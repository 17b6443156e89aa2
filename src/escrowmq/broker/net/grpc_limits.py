"""Limits of the gRPC door and of each of its connections."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.protocol.http2.violations import Http2Error, Http2Violation, violation

#: Control frames (PING, SETTINGS, PRIORITY, empty DATA, unknown kinds) at once and per second.
CONTROL_MAX = 10_000
CONTROL_PER_S = 1_000.0
#: Credit for each call: some clients send a PING with every answer that they receive.
CONTROL_PER_CALL = 10
#: Streams that end by a reset, of either side, at once and per second.
RESETS_MAX = 2_000
RESETS_PER_S = 200.0
#: CONTINUATION frames of one header block.
CONTINUATIONS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of the gRPC door."""

    message_bytes_max: int = 4 * 1024 * 1024 + 64 * 1024
    #: Calls of one connection that may be open at a time.
    streams_max: int = 1_024
    #: Bytes of the header fields of one call.
    header_list_bytes_max: int = 16 * 1024
    #: Bytes of the dynamic table that clients may use after their acknowledgement; 0 lets
    #: ``HeadReader`` read repeated headers fast.
    header_table_bytes: int = 0
    connections_max: int = 20_000
    #: Unsent bytes of one connection above which the broker cuts it: bytes that the client's
    #: flow control holds back, and bytes that it does not read.
    unsent_bytes_max: int = 64 * 1024 * 1024
    #: Unread bytes at which the broker stops reading from a client.
    slow_bytes: int = 1024 * 1024
    #: The broker closes a connection without calls that is silent for this long. It sends a PING
    #: to one with calls after half of this time, and cuts it if the client stays silent.
    idle_ms_max: int = 120_000
    #: The broker cuts a connection whose frame or message stays incomplete for this long, or whose
    #: client takes none of its answers for this long.
    stalled_ms_max: int = 60_000
    #: Time for the first bytes and for the TLS handshake.
    opening_ms_max: int = 10_000


class FloodGuard:
    """Counts frames that cost work and do none, and ends a connection that sends too many."""

    __slots__ = ("_control", "_control_at", "_resets", "_resets_at")

    def __init__(self, now: float) -> None:
        self._control = float(CONTROL_MAX)
        self._resets = float(RESETS_MAX)
        self._control_at = self._resets_at = now

    def called(self) -> None:
        """Count a call."""
        self._control += CONTROL_PER_CALL

    def control(self, now: float) -> None:
        """Count a control frame."""
        self._control -= 1
        if self._control < 0:
            earned = (now - self._control_at) * CONTROL_PER_S
            self._control = min(self._control + earned, CONTROL_MAX)
            self._control_at = now
            if self._control < 0:
                raise flood("too many control frames")

    def reset(self, now: float) -> None:
        """Count a stream that ended by a reset."""
        self._resets -= 1
        if self._resets < 0:
            earned = (now - self._resets_at) * RESETS_PER_S
            self._resets = min(self._resets + earned, RESETS_MAX)
            self._resets_at = now
            if self._resets < 0:
                raise flood("too many streams are reset")


def flood(message: str) -> Http2Violation:
    """Return the error for a peer that sends too many useless frames."""
    return violation(Http2Error.ENHANCE_YOUR_CALM, message)
