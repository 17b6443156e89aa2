"""Records of a new epoch, and of changes to store time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Begin, Decision, MoveTime
from escrowmq.transaction.records import Began, TimeMoved

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions


def begin(_core: Transactions, command: Begin, _now_ms: int) -> Decision:
    """Record that a broker starts an epoch, and its boot clock. Nothing can refuse this."""
    return Decision(records=(Began(command.epoch, command.boot_ms, command.boot_id),))


def move_time(_core: Transactions, command: MoveTime, _now_ms: int) -> Decision:
    """Record a change of store time that the broker's ``StoreTime`` has decided."""
    moved = TimeMoved(
        command.from_ms,
        command.to_ms,
        command.why,
        command.by,
        command.boot_ms,
        command.boot_id,
        command.since_ms,
    )
    return Decision(records=(moved,))
