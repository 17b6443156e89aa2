"""A broker's history (``Sight``), from its status and its back-checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.lineage import Sight, decode_lineage

if TYPE_CHECKING:
    from escrowmq.protocol.native.status_answer import StatusAnswer
    from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader


def sight_of(told: StatusAnswer) -> Sight | None:
    """Return the broker's history from its status, or None from a release without a lineage."""
    lineage = decode_lineage(told.lineage)
    return None if lineage is None else Sight(lineage, told.log_end, told.half_end)


def sight_of_check(header: CheckTransactionHeader) -> Sight | None:
    """Return the broker's history from a back-check, or None if the half message has no ledger."""
    lineage = decode_lineage(header.lineage or "")
    if lineage is None or header.log_end is None or header.half_end is None:
        return None
    return Sight(lineage, header.log_end, header.half_end)
