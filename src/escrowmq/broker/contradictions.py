"""Contradictions: a client or verdict says the opposite of a transaction's decision.

The first decision stands. But if a producer and the pipeline disagree, a database and its messages
may disagree too, so the broker alerts an operator, once per transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.model.errors import RequestRefused
    from escrowmq.transaction.commands import End
    from escrowmq.transaction.states import Resolution

log = event_log(__name__)

REMEMBERED_MAX = 10_000
"""Reported transactions to remember; a forgotten one may be reported again."""


class Contradictions:
    """Contradictions since the broker started."""

    def __init__(self) -> None:
        #: Number of transactions, each counted once.
        self.count = 0
        self._told_of: dict[int, None] = {}

    def note(
        self,
        half_offset: int,
        said: Resolution,
        said_by: str,
        *,
        state: str,
        decided_by: str,
        decided_at_ms: int,
    ) -> None:
        """Report a contradiction, unless this transaction was reported before."""
        if half_offset in self._told_of:
            return
        if len(self._told_of) >= REMEMBERED_MAX:
            del self._told_of[next(iter(self._told_of))]
        self._told_of[half_offset] = None
        self.count += 1
        log.warning(
            "contradiction",
            extra={
                "half_offset": half_offset,
                "said": said.value,
                "said_by": said_by,
                "state": state,
                "decided_by": decided_by,
                "decided_at_ms": decided_at_ms,
            },
        )

    def note_refused(self, command: End, refused: RequestRefused) -> None:
        """Report a decision that was refused because of an earlier one."""
        self.note(
            command.half_offset,
            command.resolution,
            command.by,
            state=refused.code.removeprefix("already_"),
            decided_by=str(refused.fields["by"]),
            decided_at_ms=int(str(refused.fields["at_ms"])),
        )
