"""END_TRANSACTION: brings a producer's decision to the core.

Stock clients send it one-way and get no answer. A client that waits for an answer learns the
actual decision, its author and its time, even if that differs from its own request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.headers import Header, Int64
from escrowmq.protocol.send_headers import EndTransactionHeader
from escrowmq.protocol.stored_message import SYS_COMMITTED, SYS_ROLLED_BACK
from escrowmq.transaction.commands import Decision, End, Settled
from escrowmq.transaction.states import Resolution

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker

_RESOLUTIONS = {
    0: Resolution.UNKNOWN,
    SYS_COMMITTED: Resolution.COMMIT,
    SYS_ROLLED_BACK: Resolution.ROLLBACK,
}
#: RocketMQ defines these codes, but its brokers never send them.
_CONTRADICTIONS = {
    "already_committed": ResponseCode.TRANSACTION_SHOULD_COMMIT,
    "already_rolled_back": ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
}


class EndTransactionResponseHeader(Header, frozen=True, kw_only=True):
    """The one decision of a transaction."""

    state: str
    by: str
    at_ms: Int64
    #: The transaction was decided before this request.
    is_repeated: bool = False


class Ending:
    """Handles END_TRANSACTION."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {RequestCode.END_TRANSACTION: self.end}

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
        self._broker.submit(
            request,
            command,
            lambda decision: _tell(request, decision),
            lambda request, refused: self._refused(request, refused, command),
        )

    def _refused(self, request: Request, refused: RequestRefused, command: End) -> None:
        code = _CONTRADICTIONS.get(refused.code)
        if code is None:
            request.decline(refused)
            return
        header = EndTransactionResponseHeader(
            state=refused.code.removeprefix("already_"),
            by=str(refused.fields["by"]),
            at_ms=int(str(refused.fields["at_ms"])),
            is_repeated=True,
        )
        self._broker.contradictions.note_refused(command, refused)
        request.answer(code, header=header, remark=str(refused))


def _tell(request: Request, decision: Decision) -> None:
    if request.frame.is_one_way:
        request.note(ResponseCode.SUCCESS)
        return
    reply = decision.reply
    if not isinstance(reply, Settled):
        # The producer answered "unknown", so nothing was decided.
        request.answer(ResponseCode.SUCCESS)
        return
    header = EndTransactionResponseHeader(
        state=reply.state.label, by=reply.by, at_ms=reply.at_ms, is_repeated=reply.repeated
    )
    request.answer(ResponseCode.SUCCESS, header=header)
