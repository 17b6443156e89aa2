"""The start of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Begin, Decision
from escrowmq.transaction.records import Began

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions


def begin(_core: Transactions, command: Begin, _now_ms: int) -> Decision:
    """Record the epoch; nothing can refuse it."""
    return Decision(records=(Began(command.epoch),))
