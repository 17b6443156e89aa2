"""Heartbeats of pipelines, and whether one of them does its work.

Heartbeats are only in memory: after a restart, each pipeline sends the next one within 5 seconds.
All times are on the broker's monotonic clock.
"""

from __future__ import annotations

import msgspec

from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader

PIPELINES_MAX = 16
"""Pipelines whose heartbeats are kept; the broker forgets the one that it heard least recently."""

ROUND_MS_MAX = 24 * 3_600_000
"""Longest limit of a round, whatever its pipeline says."""

SILENT_MS_MAX = 15_000
"""A pipeline is away once it has missed three heartbeats in a row."""


class _Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of one pipeline."""

    heard_at_ms: int
    #: When its last successful round ended; None if there was none.
    round_ended_at_ms: int | None
    #: Until when the round under way is within its limit; None if no round was under way.
    round_ends_by_ms: int | None


class PipelineLife:
    """The pipelines that a broker hears from; callers pass the current time."""

    def __init__(self) -> None:
        #: By pipeline, the one heard last at the end.
        self._heard: dict[str, _Heartbeat] = {}

    def put(self, header: HeartbeatHeader, *, now_ms: int) -> None:
        """Take a heartbeat."""
        self._heard.pop(header.pipeline, None)
        if header.is_last:
            return
        ended, running = header.round_ended_ago_ms, header.round_running_ms
        self._heard[header.pipeline] = _Heartbeat(
            heard_at_ms=now_ms,
            round_ended_at_ms=None if ended is None else now_ms - max(ended, 0),
            round_ends_by_ms=(
                None if running is None else now_ms + _left_ms(running, header.round_ms_max)
            ),
        )
        if len(self._heard) > PIPELINES_MAX:
            del self._heard[next(iter(self._heard))]

    def is_alive(self, now_ms: int, *, due_since_ms: int | None, patience_ms: int) -> bool:
        """Whether a pipeline does its work.

        ``due_since_ms`` is since when a check has been due without a break; None if none is. A
        pipeline has ``patience_ms`` from then on, and after each successful round, to end the next
        round. A longer round counts as work until its own limit.
        """
        return any(
            _works(one, now_ms, due_since_ms, patience_ms)
            for one in self._heard.values()
            if now_ms - one.heard_at_ms <= SILENT_MS_MAX
        )


def _left_ms(running_ms: int, limit_ms: int) -> int:
    """Return how much longer a round is within its limit."""
    return max(min(limit_ms, ROUND_MS_MAX) - max(running_ms, 0), 0)


def _works(one: _Heartbeat, now_ms: int, due_since_ms: int | None, patience_ms: int) -> bool:
    if due_since_ms is None:
        return True
    if one.round_ends_by_ms is not None and now_ms < one.round_ends_by_ms:
        return True
    last_good_ms = max(due_since_ms, one.round_ended_at_ms or due_since_ms)
    return now_ms - last_good_ms <= patience_ms
