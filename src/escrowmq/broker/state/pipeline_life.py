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
    #: When its first heartbeat came.
    first_heard_at_ms: int
    #: When its last successful round ended; None if there was none.
    round_ended_at_ms: int | None
    #: Until when the round under way is within its limit; None if no round was under way.
    round_ends_by_ms: int | None
    #: The limit of its rounds.
    round_ms_max: int


class PipelineLife:
    """The pipelines that a broker hears from; callers pass the current time."""

    def __init__(self) -> None:
        #: By pipeline, the one heard last at the end.
        self._heard: dict[str, _Heartbeat] = {}
        #: When pipelines failed to do their work in time. Each counts again after its next
        #: successful round.
        self._failed_at_ms: dict[str, int] = {}

    def put(self, header: HeartbeatHeader, *, now_ms: int) -> None:
        """Take a heartbeat."""
        before = self._heard.pop(header.pipeline, None)
        if header.is_last:
            self._failed_at_ms.pop(header.pipeline, None)
            return
        ended, running = header.round_ended_ago_ms, header.round_running_ms
        limit_ms = min(header.round_ms_max, ROUND_MS_MAX)
        self._heard[header.pipeline] = _Heartbeat(
            heard_at_ms=now_ms,
            first_heard_at_ms=now_ms if before is None else before.first_heard_at_ms,
            round_ended_at_ms=None if ended is None else now_ms - max(ended, 0),
            round_ends_by_ms=(
                None if running is None else now_ms + max(limit_ms - max(running, 0), 0)
            ),
            round_ms_max=limit_ms,
        )
        if len(self._heard) > PIPELINES_MAX:
            silent = next(iter(self._heard))
            del self._heard[silent]
            self._failed_at_ms.pop(silent, None)

    def note_failures(self, now_ms: int, *, due_since_ms: int | None, patience_ms: int) -> None:
        """Note which pipelines do not do their work in time."""
        for name, one in self._heard.items():
            if not _works(one, now_ms, due_since_ms, patience_ms):
                self._failed_at_ms.setdefault(name, now_ms)
            elif self._has_recovered(name, one):
                self._failed_at_ms.pop(name, None)

    def working(self, now_ms: int, *, due_since_ms: int | None, patience_ms: int) -> frozenset[str]:
        """Return the pipelines that do their work.

        ``due_since_ms`` is since when a check has been due without a break; None if none is. A
        pipeline has ``patience_ms`` from then on, and after each successful round, to end the next
        round. A longer round counts as work until its own limit, but rounds that fail one after
        another have that time only once.
        """
        return frozenset(
            name
            for name, one in self._heard.items()
            if now_ms - one.heard_at_ms <= SILENT_MS_MAX
            and self._has_recovered(name, one)
            and _works(one, now_ms, due_since_ms, patience_ms)
        )

    def _has_recovered(self, name: str, one: _Heartbeat) -> bool:
        """Whether the pipeline has not failed, or has ended a successful round since."""
        failed_at_ms = self._failed_at_ms.get(name)
        if failed_at_ms is None:
            return True
        return one.round_ended_at_ms is not None and one.round_ended_at_ms >= failed_at_ms


def _works(one: _Heartbeat, now_ms: int, due_since_ms: int | None, patience_ms: int) -> bool:
    if due_since_ms is None:
        return True
    last_good_ms = max(due_since_ms, one.round_ended_at_ms or due_since_ms)
    if now_ms - last_good_ms <= patience_ms:
        return True
    if one.round_ends_by_ms is None or now_ms >= one.round_ends_by_ms:
        return False
    return now_ms - max(last_good_ms, one.first_heard_at_ms) <= patience_ms + one.round_ms_max
