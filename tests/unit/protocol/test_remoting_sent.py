"""Outgoing frames: requests, and responses in the form of their requests."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import ConsumerGroupHeader, OffsetResponseHeader
from escrowmq.protocol.remoting.frames import (
    REMARK_CHARS_MAX,
    FrameSplitter,
    RemotingFrame,
    encode_request,
    encode_response,
    response_head,
)
from escrowmq.protocol.remoting.headers import read_fields
from tests.unit.protocol.frames import binary_frame, json_frame

ASKED = (json_frame(b"first"), binary_frame(b"", opaque=-8, flag=2))


def comparable(frame: RemotingFrame) -> dict[str, Any]:
    return msgspec.structs.asdict(frame) | {"ext": read_fields(frame.ext)}


def only(data: bytes) -> RemotingFrame:
    (frame,) = FrameSplitter().feed(data)
    return frame


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    code=st.integers(0, 32_767),
    opaque=st.integers(-(2**31), 2**31 - 1),
    group=TEXTS.filter(bool),
    remark=TEXTS,
    body=st.binary(max_size=50),
    is_one_way=st.booleans(),
    is_binary=st.booleans(),
)
def test_a_request_is_read_as_it_was_sent(
    *,
    code: int,
    opaque: int,
    group: str,
    remark: str,
    body: bytes,
    is_one_way: bool,
    is_binary: bool,
) -> None:
    frame = only(
        encode_request(
            code,
            opaque,
            header=ConsumerGroupHeader(consumer_group=group),
            remark=remark,
            body=body,
            is_one_way=is_one_way,
            is_binary=is_binary,
        )
    )
    assert comparable(frame) == {
        "code": code,
        "opaque": opaque,
        "flag": 2 if is_one_way else 0,
        "language": "PYTHON",
        "version": 479,
        "remark": remark,
        "ext": {"consumerGroup": group},
        "body": body,
        "is_binary": is_binary,
    }


@pytest.mark.parametrize("request_frame", ASKED, ids=["json", "binary"])
@pytest.mark.parametrize("header", [None, OffsetResponseHeader(offset=5)])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_a_response_belongs_to_its_request(
    request_frame: bytes, header: OffsetResponseHeader | None, body: bytes
) -> None:
    request = only(request_frame)
    data = encode_response(request, ResponseCode.QUERY_NOT_FOUND, header=header, body=body)
    response = only(data)
    assert response.is_response
    assert not response.is_one_way
    assert (response.code, response.opaque) == (22, request.opaque)
    assert response.is_binary == request.is_binary
    assert read_fields(response.ext) == ({"offset": "5"} if header else {})
    assert response.body == body
    assert data == response_head(request, 22, header=header, body_bytes=len(body)) + body


def test_a_json_header_is_standard_json() -> None:
    data = encode_response(
        only(ASKED[0]), 1, header=OffsetResponseHeader(offset=5), remark='a "q"\n\\ ë'
    )
    assert json.loads(data[8:]) == {
        "code": 1,
        "flag": 1,
        "language": "PYTHON",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
        "remark": 'a "q"\n\\ ë',
        "extFields": {"offset": "5"},
    }


def test_a_remark_is_cut_where_it_is_too_long() -> None:
    data = encode_response(only(ASKED[0]), 1, remark="x" * (REMARK_CHARS_MAX + 1))
    assert only(data).remark == "x" * REMARK_CHARS_MAX


def test_a_code_that_a_binary_header_cannot_hold_is_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        encode_request(RequestCode.POP_MESSAGE, 1, is_binary=True)
    assert refused.value.code == "code_too_large"
    assert refused.value.fields == {"code": 200_050, "code_max": 32_767}
    assert only(encode_request(RequestCode.POP_MESSAGE, 1)).code == 200_050
