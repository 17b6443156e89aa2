"""Limits of the gRPC door and of each of its connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.protocol.http2.violations import Http2Error, Http2Violation, violation

if TYPE_CHECKING:
    from escrowmq.broker.config import BrokerConfig

CONTROL_MAX, CONTROL_PER_S = 10_000, 1_000.0
"""Frames that do no work, such as PING, SETTINGS and empty DATA: at once, and per second."""
CONTROL_PER_CALL = 10
"""Credit for each call: some clients send a PING with every answer that they receive."""

RESETS_MAX, RESETS_PER_S = 2_000, 200.0
"""Streams that end by a reset, of either side: at once, per second."""

CONTINUATIONS_MAX = 64
"""CONTINUATION frames of one header block."""


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

    @classmethod
    def of(cls, config: BrokerConfig) -> GrpcLimits:
        """Return the limits that the settings of a broker ask for."""
        return cls(
            connections_max=config.connections_max,
            unsent_bytes_max=config.peer_unread_bytes_max,
            slow_bytes=config.slow_bytes,
            idle_ms_max=config.idle_ms_max,
            stalled_ms_max=config.stalled_ms_max,
        )


class FloodGuard:
    """Counts frames that cost work and do none, and ends a connection that sends too many."""

    __slots__ = ("_control", "_resets", "control", "reset")

    def __init__(self, now: float) -> None:
        self._control = _Allowance("control frames", CONTROL_MAX, CONTROL_PER_S, now)
        self._resets = _Allowance("resets of streams", RESETS_MAX, RESETS_PER_S, now)
        #: Count a control frame, or a stream that ended by a reset.
        self.control = self._control.spend
        self.reset = self._resets.spend

    def called(self) -> None:
        """Allow some more control frames, because the client began a call."""
        self._control.left += CONTROL_PER_CALL


class _Allowance:
    """A client may cause ``left`` more events now; each second adds ``per_s`` events."""

    __slots__ = ("_left_max", "_per_s", "_refilled_at", "_what", "left")

    def __init__(self, what: str, left_max: int, per_s: float, now: float) -> None:
        self._what = what
        self._left_max = self.left = float(left_max)
        self._per_s, self._refilled_at = per_s, now

    def spend(self, now: float) -> None:
        self.left -= 1
        if self.left < 0:
            earned = (now - self._refilled_at) * self._per_s
            self._refilled_at = now
            self.left = min(self.left + earned, self._left_max)
            if self.left < 0:
                raise flood(f"too many {self._what}")


def flood(message: str) -> Http2Violation:
    """Return the error for a peer that sends too many useless frames."""
    return violation(Http2Error.ENHANCE_YOUR_CALM, message)
