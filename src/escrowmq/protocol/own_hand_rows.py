"""Rows of the requests in ``own_hand_headers.py``."""

from __future__ import annotations

from escrowmq.protocol.headers import Int64
from escrowmq.protocol.own_forms import Row


class PausedRow(Row, frozen=True):
    """A consumer group that is paused."""

    group: str
    #: The person who paused it.
    by: str
    #: Store time of the pause.
    at_ms: Int64
    reason: str
