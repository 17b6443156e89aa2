"""Caller's side of native requests: encode requests, decode answers, raise refusals as errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from escrowmq.model import errors
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused
from escrowmq.protocol.native.headers import ListHeader, NativeAnswer, NativeHeader, NativeRefusal
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import (
    NativeRow,
    RowForm,
    chosen_columns,
    columns_of,
    decode_rows,
    encode_rows,
    too_many_rows,
)
from escrowmq.protocol.remoting.codes import NOT_KNOWN_HERE, ResponseCode
from escrowmq.protocol.remoting.frames import FieldSigner, RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import read_header

_KINDS: dict[str, type[EscrowError]] = {
    kind.__name__: kind
    for kind in (
        RequestRefused,
        errors.Unavailable,
        errors.OutcomeUnknown,
        errors.StoreCorrupt,
        errors.StoreUnusable,
        ProtocolViolation,
    )
}

OLDER = "the broker is older than this request: use a broker of this version"
NOT_OURS = (
    "the broker or name server there is not EscrowMQ's: give the address of an EscrowMQ broker; for"
    " Apache RocketMQ, use mqadmin and the SDK's Producer and Consumer"
)


class NativeReply(msgspec.Struct, frozen=True):
    """A broker's answer."""

    #: Has the class that the table names.
    header: Any
    #: Have the class that the table names.
    rows: list[Any]


class ArrowAnswer(msgspec.Struct, frozen=True):
    """A broker's answer with its rows as an Arrow batch."""

    #: Has the class that the table names.
    header: Any
    #: A pyarrow RecordBatch with the columns that the table names; None if it names none.
    batch: Any


class BlocksAnswer(msgspec.Struct, frozen=True):
    """A broker's answer with blocks of numbers and bytes after them."""

    #: Has the class that the table names.
    header: Any
    #: A numpy array for each column that the table names.
    columns: dict[str, Any]
    #: The bytes after the blocks.
    data: memoryview


def encode_call(
    code: NativeCode,
    opaque: int,
    header: NativeHeader | None = None,
    rows: Sequence[NativeRow] = (),
    signer: FieldSigner | None = None,
) -> bytes:
    """Encode a request as a frame."""
    spec = NATIVE_REQUESTS[code]
    asked = spec.header() if header is None else header
    assert type(asked) is spec.header
    body = b""
    if spec.rows is not None:
        body = encode_rows(asked.form, spec.rows, spec.version, rows)
    return encode_request(code, opaque, header=asked, body=body, signer=signer)


def encode_arrow_call(
    code: NativeCode,
    opaque: int,
    header: NativeHeader | None = None,
    batch: Any = None,  # noqa: ANN401 - a pyarrow RecordBatch, which has no type without importing it
    signer: FieldSigner | None = None,
) -> bytes:
    """Encode a request as a frame, with its rows as an Arrow batch."""
    from escrowmq.protocol.native import arrow

    spec = NATIVE_REQUESTS[code]
    asked = msgspec.structs.replace(spec.header() if header is None else header, form=RowForm.ARROW)
    assert type(asked) is spec.header
    body = b""
    if spec.rows is not None:
        body = arrow.encode_batch(columns_of(spec.rows), spec.version, batch)
    return encode_request(code, opaque, header=asked, body=body, signer=signer)


def read_arrow_answer(
    code: NativeCode, frame: RemotingFrame, asked: NativeHeader | None = None
) -> ArrowAnswer:
    """Decode the answer to a request of ``encode_arrow_call``."""
    from escrowmq.protocol.native import arrow

    spec = NATIVE_REQUESTS[code]
    header = _header_of(code, frame)
    if spec.answer_rows is None:
        return ArrowAnswer(header, None)
    names = asked.columns if isinstance(asked, ListHeader) else ""
    columns = chosen_columns(spec.answer_rows, names)
    return ArrowAnswer(
        header, arrow.decode_batch(columns, spec.version, frame.body, rows_max=spec.answer_rows_max)
    )


def read_blocks_answer(code: NativeCode, frame: RemotingFrame) -> BlocksAnswer:
    """Decode an answer that has bytes after its rows."""
    from escrowmq.protocol.native.number_blocks import decode_blocks

    spec = NATIVE_REQUESTS[code]
    assert spec.answer_bytes
    assert spec.answer_rows is not None
    header = _header_of(code, frame)
    if header.row_count > spec.answer_rows_max:
        raise too_many_rows(header.row_count, spec.answer_rows_max)
    columns, at = decode_blocks(spec.answer_rows, frame.body, header.row_count)
    return BlocksAnswer(header, columns, memoryview(frame.body)[at:])


def _header_of(code: NativeCode, frame: RemotingFrame) -> NativeAnswer:
    if frame.code != ResponseCode.SUCCESS:
        raise _refused(frame)
    return read_header(NATIVE_REQUESTS[code].answer, frame.ext)


def read_answer(code: NativeCode, frame: RemotingFrame) -> NativeReply:
    """Decode an answer; raise a refusal as the same error that the broker raised."""
    spec = NATIVE_REQUESTS[code]
    header = _header_of(code, frame)
    rows: list[Any] = []
    if spec.answer_rows is not None:
        rows = decode_rows(
            header.form, spec.answer_rows, spec.version, frame.body, rows_max=spec.answer_rows_max
        )
    return NativeReply(header, rows)


def _refused(frame: RemotingFrame) -> EscrowError:
    try:
        told = read_header(NativeRefusal, frame.ext)
    except ProtocolViolation:
        return unsupported(frame)
    kind = _KINDS.get(told.kind, RequestRefused)
    more = {} if told.retry_after_ms is None else {"retry_after_ms": told.retry_after_ms}
    return kind(told.error, frame.remark.removeprefix(f"{told.error}: "), **more)


def unsupported(frame: RemotingFrame) -> RequestRefused:
    """Return the error for a peer without this request: Apache RocketMQ, or an older broker."""
    told, facts = frame.remark.strip(), {}
    if frame.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        is_ours = told.endswith(NOT_KNOWN_HERE)
        told, facts = OLDER if is_ours else NOT_OURS, {"answer": told}
    return RequestRefused("request_unsupported", told, response_code=frame.code, **facts)
