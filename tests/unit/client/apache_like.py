"""Make our broker act like one of Apache's, which does not know native requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request
from escrowmq.broker.rocketmq.sending import Sending
from escrowmq.broker.server import Server
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader, SendResponseHeader

if TYPE_CHECKING:
    import pytest


def play_apache(server: Server) -> None:
    """Make producers that start from now on take the broker for one of Apache's."""
    for code in NativeCode:
        server.broker._handlers.pop(code, None)


def refuse_late_decisions(server: Server) -> None:
    """Answer each decision with code 604, as Apache's broker does after the message's own time.

    The answer to a check is accepted.
    """
    end = server.broker._handlers[RequestCode.END_TRANSACTION]

    def refuse(request: Request) -> None:
        if request.header(EndTransactionHeader).is_check_answer:
            end(request)
        else:
            request.answer(ResponseCode.ILLEGAL_OPERATION, remark="check_immunity_time is over")

    server.broker._handlers[RequestCode.END_TRANSACTION] = refuse


def store_unsafely(monkeypatch: pytest.MonkeyPatch, code: ResponseCode) -> None:
    """Store each message, but answer `code` (not flushed or replicated) with the full header."""

    def tell(  # noqa: PLR0917 - same signature as the method it replaces
        sending: Sending,
        request: Request,
        log_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None = None,
    ) -> None:
        header = SendResponseHeader(
            offset_message_id=offset_message_id(sending.identity.store_host, log_offset),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=unique_key,
        )
        request.answer(code, header=header, remark="not safe yet")

    monkeypatch.setattr(Sending, "_tell", tell)
