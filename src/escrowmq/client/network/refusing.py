"""Errors for a broker's responses. This module stays light: small tools import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from escrowmq.protocol.remoting.frames import RemotingFrame

_RETRIABLE = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.FLOW_CONTROL,
    ResponseCode.GO_AWAY,
)


def refuse_unless_done(answer: RemotingFrame) -> RemotingFrame:
    """Return a successful response; raise a refusal as the error kind that says who must act.

    Our own broker starts its remark with the error's code; Apache's remark is free text.
    """
    if answer.code == ResponseCode.SUCCESS:
        return answer
    kind = Unavailable if answer.code in _RETRIABLE else RequestRefused
    code, _, text = answer.remark.partition(": ")
    if code.isidentifier() and code.islower():
        raise kind(code, text, response_code=answer.code)
    if kind is Unavailable:
        raise Unavailable("broker_busy", answer.remark, response_code=answer.code)
    raise RequestRefused("broker_refused", answer.remark, response_code=answer.code)
