"""Logs producers' answers that an operator may have to look into.

As in RocketMQ, the broker logs a warning with the producer's remark when a back-check is answered
with ROLLBACK or UNKNOWN, and when a local transaction ends with UNKNOWN.
"""

from __future__ import annotations

from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.transaction.commands import End, EndReply

log = event_log(__name__)

#: Maximum warnings about answers of one group, for each kind of answer, in ``LOG_AGAIN_S``.
LOGGED_MAX = 10
LOG_AGAIN_S = 60.0


class EndLog:
    """Logs answers of producers, a limited number of each kind."""

    def __init__(self) -> None:
        self._limit = LogLimit(log, burst=LOGGED_MAX, window_s=LOG_AGAIN_S)

    def note(self, command: End, transaction_id: str, reply: object) -> None:
        """Log an accepted UNKNOWN, and a back-check's ROLLBACK that decided the transaction."""
        is_unknown = command.resolution is Resolution.UNKNOWN
        is_check_rollback = command.from_check and command.resolution is Resolution.ROLLBACK
        is_repeated = isinstance(reply, EndReply) and reply.repeated
        if is_repeated or not (is_unknown or is_check_rollback):
            return
        event = "check_answered" if command.from_check else "local_transaction_unknown"
        facts = {
            "answer": command.resolution.value,
            "producer_group": command.group,
            "transaction_id": transaction_id,
            "half_offset": command.half_offset,
            "client": command.by,
            "remark": command.remark[:SHOWN_CHARS_MAX],
        }
        self._limit.warning(event, (command.group, command.resolution), facts)
