"""How our own broker's answers are read, whoever asked."""

from __future__ import annotations

from typing import Any

import msgspec

from escrowmq.model.errors import (
    EscrowError,
    OutcomeUnknown,
    ProtocolViolation,
    RequestRefused,
    StoreCorrupt,
    StoreUnusable,
    Unavailable,
)
from escrowmq.protocol.codes import ResponseCode
from escrowmq.protocol.headers import ExtFields, read_header
from escrowmq.protocol.own import OwnRequest
from escrowmq.protocol.own_forms import decode_rows
from escrowmq.protocol.own_headers import OwnAnswer, OwnRefusal
from escrowmq.protocol.remoting import Frame

_KINDS: dict[str, type[EscrowError]] = {
    kind.__name__: kind
    for kind in (
        RequestRefused,
        Unavailable,
        OutcomeUnknown,
        StoreCorrupt,
        StoreUnusable,
        ProtocolViolation,
    )
}


class Answer(msgspec.Struct, frozen=True):
    """What a broker answered."""

    header: OwnAnswer
    rows: list[Any]


def read_answer(spec: OwnRequest, frame: Frame) -> Answer:
    """What a broker answered; what it refuses is raised as it raised it."""
    if frame.code != ResponseCode.SUCCESS:
        raise _refused(frame.ext, frame.remark)
    header = read_header(spec.answer, frame.ext)
    rows: list[Any] = []
    if spec.answer_rows is not None:
        rows = decode_rows(
            header.form, spec.answer_rows, spec.version, frame.body, rows_max=spec.answer_rows_max
        )
    return Answer(header, rows)


def _refused(ext: ExtFields, remark: str) -> EscrowError:
    try:
        told = read_header(OwnRefusal, ext)
    except ProtocolViolation:
        # No broker of ours, or one that does not know this request.
        return RequestRefused("refused_by_peer", remark)
    kind = _KINDS.get(told.kind, RequestRefused)
    more = {} if told.retry_after_ms is None else {"retry_after_ms": told.retry_after_ms}
    return kind(told.error, remark.removeprefix(f"{told.error}: "), **more)
