"""PIPELINE_HEARTBEAT: a pipeline tells a broker that it is alive and whether its rounds succeed.

A heartbeat contains ages instead of times, because the clocks of two machines differ.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.remoting.headers import Int64

HEARTBEAT_S = 5.0
"""The interval between two heartbeats of a pipeline."""


class HeartbeatHeader(NativeHeader, frozen=True, kw_only=True):
    """PIPELINE_HEARTBEAT."""

    #: The pipeline that reports. It has the same name in REPORT_LEDGERS.
    pipeline: Name
    #: How long ago the last successful settle round that read this broker ended; absent if there
    #: was none.
    round_ended_ago_ms: Int64 | None = None
    #: How long the round under way has been running; absent if none is.
    round_running_ms: Int64 | None = None
    #: The limit of a round (`pipeline.round_ms_max`).
    round_ms_max: Int64 = 0
    #: Whether this is the last heartbeat, because the pipeline stops.
    is_last: bool = False


class HeartbeatAnswer(NativeAnswer, frozen=True, kw_only=True):
    """PIPELINE_HEARTBEAT."""

    #: Which process checks undecided transactions now: `broker`, `pipeline` or `none`.
    checker: str = ""
