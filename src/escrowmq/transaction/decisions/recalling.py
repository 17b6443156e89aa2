"""The decision about a recall: a delayed message is taken back, unless it is visible.

Its row becomes ``ROLLED_BACK``, which no delayed message has otherwise. So everything that looks
for needed or due rows passes it by, and the frame of the recall is its decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Decision
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.recall_commands import RecallReply
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NEVER, PLAIN
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.recall_commands import Recall


def recall(core: Transactions, command: Recall, _now_ms: int) -> Decision:
    """Recall a delayed message until it is visible; a repeat is answered like the first time."""
    row = command.half_offset
    known = core.table.get(row)
    # After a restore, another message may have this place.
    is_foreign = command.epoch and not core.lineage.holds(command.epoch, command.log_offset)
    is_its = known is not None and known.log_offset == command.log_offset
    if known is None or known.origin != PLAIN or is_foreign or not is_its:
        return refuse(
            "no_such_delayed_message",
            "this history of the broker has no delayed message there, or its retention is over",
            half_offset=row,
            log_offset=command.log_offset,
            epoch=command.epoch,
        )
    if known.state is State.ROLLED_BACK:
        return Decision(reply=RecallReply(half_offset=row, repeated=True))
    if known.next_at_ms == NEVER:
        return refuse(
            "recall_too_late",
            "the message is visible, or it was deleted with its topic",
            half_offset=row,
        )
    return Decision(
        records=(Recalled(row, known.queue, command.by),),
        reply=RecallReply(half_offset=row, repeated=False),
    )
