"""Headers of a pipeline's requests about itself: it waits for due work, and tells how it does.

A heartbeat contains ages instead of times, because the clocks of two machines differ.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.remoting.headers import Int32, Int64

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


class AwaitDueHeader(NativeHeader, frozen=True, kw_only=True):
    """AWAIT_DUE."""

    #: How long to wait for a new due check, at most 25000; 0 for an immediate answer.
    wait_ms: Int32 = 0
    #: Only checks that came due after this time end the wait: `nowMs` of the previous answer.
    since_ms: Int64 = 0


class AwaitDueAnswer(NativeAnswer, frozen=True, kw_only=True):
    """AWAIT_DUE: the state at `nowMs`."""

    #: Undecided transactions whose next check is due.
    due: Int64
    #: When the next check comes due; absent if none will.
    next_due_at_ms: Int64 | None = None
    #: Transactions that are neither decided nor parked.
    undecided: Int64
    #: Those of them that are attempts of Spark sinks.
    sink_attempts: Int64
    #: Changes whenever a batch is decided, or an attempt of a new run is held.
    batches_decided: Int64
    #: The end of the readable log.
    log_end: Int64
