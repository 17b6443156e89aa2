"""END_TRANSACTION: brings a producer's decision to the core.

Stock clients send it one-way and get no answer. A client that waits for an answer learns the
actual decision, its author and its time, even if that differs from its own request.

As in RocketMQ, the broker logs a warning with the producer's remark when a back-check is answered
with ROLLBACK or UNKNOWN, and when a local transaction ends with UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.message.stored_message import SYS_COMMITTED, SYS_ROLLED_BACK
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import (
    EndTransactionHeader,
    EndTransactionResponseHeader,
)
from escrowmq.transaction.commands import Decision, End, EndReply
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.net.answering import Answering

log = event_log(__name__)

#: Maximum warnings about answers of one group, for each kind of answer, in ``LOG_AGAIN_S``.
LOGGED_MAX = 10
LOG_AGAIN_S = 60.0

_RESOLUTIONS = {
    0: Resolution.UNKNOWN,
    SYS_COMMITTED: Resolution.COMMIT,
    SYS_ROLLED_BACK: Resolution.ROLLBACK,
}
#: RocketMQ defines these codes, but its brokers never send them.
_CONTRADICTIONS = {
    State.COMMITTED: ResponseCode.TRANSACTION_SHOULD_COMMIT,
    State.ROLLED_BACK: ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class EndTransactionRequests:
    """Handles END_TRANSACTION."""

    answering: Answering
    contradictions: Contradictions
    _limit: LogLimit = field(
        default_factory=lambda: LogLimit(log, burst=LOGGED_MAX, window_s=LOG_AGAIN_S), init=False
    )

    @handles(RequestCode.END_TRANSACTION)
    def end(self, request: Request) -> None:
        """Decide a transaction, or note that its outcome is not known yet."""
        header = request.header(EndTransactionHeader)
        resolution = _RESOLUTIONS.get(header.resolution_bits)
        if resolution is None:
            raise RequestRefused(
                "resolution_unknown",
                "send 8 to commit, 12 to roll back, 0 if it is not known",
                commitOrRollback=header.resolution_bits,
            )
        command = End(
            half_offset=header.half_offset,
            resolution=resolution,
            by=request.connection.client_id or request.connection.address,
            group=header.producer_group,
            log_offset=header.log_offset,
            ids=tuple(one for one in (header.unique_key, header.transaction_id) if one),
            from_check=header.is_check_answer,
            remark=request.frame.remark,
        )

        def contradicted(refused: RequestRefused, stands: EndReply) -> None:
            self.contradictions.note(command.resolution, command.by, stands)
            code = _CONTRADICTIONS[stands.state]
            request.answer(code, header=_header(stands), remark=str(refused))

        def decided(decision: Decision) -> None:
            self._note(command, header, decision.reply)
            _tell(request, decision)

        self.answering.submit(request, command, decided, contradicted)

    def _note(self, command: End, header: EndTransactionHeader, reply: object) -> None:
        """Log an accepted UNKNOWN, and a back-check's ROLLBACK that decided the transaction."""
        is_unknown = command.resolution is Resolution.UNKNOWN
        is_check_rollback = command.from_check and command.resolution is Resolution.ROLLBACK
        is_repeated = isinstance(reply, EndReply) and reply.repeated
        if is_repeated or not (is_unknown or is_check_rollback):
            return
        event = "check_answered" if command.from_check else "local_transaction_unknown"
        facts = {
            "answer": command.resolution.value,
            "producer_group": header.producer_group,
            "transaction_id": header.transaction_id or header.unique_key,
            "half_offset": command.half_offset,
            "client": command.by,
            "remark": command.remark[:SHOWN_CHARS_MAX],
        }
        self._limit.warning(event, (header.producer_group, command.resolution), facts)


def _tell(request: Request, decision: Decision) -> None:
    if request.frame.is_one_way:
        request.note(ResponseCode.SUCCESS)
        return
    reply = decision.reply
    if not isinstance(reply, EndReply):
        # The producer answered "unknown", so nothing was decided.
        request.answer(ResponseCode.SUCCESS)
        return
    request.answer(ResponseCode.SUCCESS, header=_header(reply))


def _header(ended: EndReply) -> EndTransactionResponseHeader:
    return EndTransactionResponseHeader(
        state=ended.state.label,
        by=ended.by,
        at_ms=ended.at_ms,
        is_repeated=ended.repeated,
    )
