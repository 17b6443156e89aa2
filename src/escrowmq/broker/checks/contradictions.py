"""Contradictions: a client or verdict says the opposite of a transaction's decision.

The first decision stands. But if a producer and the pipeline disagree, a database and its messages
may disagree too, so the broker alerts an operator, once per transaction.
"""

from __future__ import annotations

from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import EndReply

log = event_log(__name__)

REMEMBERED_MAX = 10_000
"""Reported transactions to remember; a forgotten one may be reported again."""


class Contradictions:
    """Contradictions since the broker started."""

    def __init__(self) -> None:
        #: Number of reported transactions; one that was forgotten may count again.
        self.count = 0
        self._told_of: dict[int, None] = {}

    def note(self, said: Resolution, said_by: str, stands: EndReply) -> None:
        """Report that ``said`` contradicts the decision, unless the transaction was reported."""
        if stands.half_offset in self._told_of:
            return
        if len(self._told_of) >= REMEMBERED_MAX:
            del self._told_of[next(iter(self._told_of))]
        self._told_of[stands.half_offset] = None
        self.count += 1
        log.warning(
            "contradiction",
            extra={
                "half_offset": stands.half_offset,
                "said": said.value,
                "said_by": said_by,
                "state": stands.state.label,
                "decided_by": stands.by,
                "decided_at_ms": stands.at_ms,
            },
        )
