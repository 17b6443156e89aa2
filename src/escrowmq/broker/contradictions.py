"""Somebody says the opposite of what a transaction was decided to be.

The first decision stands, whoever made it.  But a producer and a settlement that disagree mean that
a database and the messages may not agree, so a person must hear of it: once per transaction.
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
"""Transactions that were told of; forgetting one only means that it may be told of again."""


class Contradictions:
    """All that were seen since the broker started."""

    def __init__(self) -> None:
        #: Transactions, each counted once.
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
        """Raise the alert, unless that was done before."""
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
        """A decision was refused because of an earlier one."""
        self.note(
            command.half_offset,
            command.resolution,
            command.by,
            state=refused.code.removeprefix("already_"),
            decided_by=str(refused.fields["by"]),
            decided_at_ms=int(str(refused.fields["at_ms"])),
        )
