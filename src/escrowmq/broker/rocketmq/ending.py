"""END_TRANSACTION: brings a producer's decision to the core.

Stock clients send it one-way and get no answer. A client that waits for an answer learns the
actual decision, its author and its time, even if that differs from its own request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.checks.endings import resolution_among
from escrowmq.broker.net.requests import Request, handles
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import SYS_COMMITTED, SYS_ROLLED_BACK
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import (
    EndTransactionHeader,
    EndTransactionResponseHeader,
)
from escrowmq.transaction.commands import Decision, End, EndReply
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.broker.checks.endings import Endings
    from escrowmq.model.errors import RequestRefused

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

    endings: Endings

    @handles(RequestCode.END_TRANSACTION)
    def end(self, request: Request) -> None:
        """Decide a transaction, or note that its outcome is not known yet."""
        header = request.header(EndTransactionHeader)
        command = End(
            half_offset=header.half_offset,
            resolution=resolution_among(_RESOLUTIONS, header.resolution_bits),
            by=request.by,
            group=header.producer_group,
            log_offset=header.log_offset,
            ids=tuple(one for one in (header.unique_key, header.transaction_id) if one),
            from_check=header.is_check_answer,
            remark=request.frame.remark,
        )

        def contradicted(refused: RequestRefused, stands: EndReply) -> None:
            code = _CONTRADICTIONS[stands.state]
            request.answer(code, header=_header(stands), remark=str(refused))

        named = header.transaction_id or header.unique_key
        self.endings.submit(request, command, named, partial(_tell, request), contradicted)


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
