"""A response from a template has the same content as one encoded without it."""

from __future__ import annotations

import pytest

from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.remoting.consumer_headers import PullResponseHeader
from escrowmq.protocol.remoting.frames import (
    FrameSplitter,
    RemotingFrame,
    decode_frame,
    encode_response,
)
from escrowmq.protocol.remoting.headers import read_fields
from escrowmq.protocol.remoting.send_headers import SendResponseHeader
from escrowmq.protocol.remoting.templates import SentAnswers, encode_found
from tests.unit.protocol.examples import IPV4, IPV6
from tests.unit.protocol.frames import binary_header, frame_of, json_header

JSON = decode_frame(frame_of(json_header(opaque=2**31 - 1))[4:])
BINARY = decode_frame(frame_of(binary_header(), header_type=1)[4:])


@pytest.mark.parametrize("request_", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("store_host", [IPV4, IPV6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("transaction_id", [None, "", "7F0000", 'ü "quoted" \\ %d'])
def test_an_answer_from_the_template_says_the_same(
    request_: RemotingFrame, store_host: bytes, transaction_id: str | None
) -> None:
    answers = SentAnswers(store_host, "DefaultRegion")
    header = SendResponseHeader(
        offset_message_id=offset_message_id(store_host, 2**40 + 5),
        queue_id=3,
        queue_offset=2**33,
        transaction_id=transaction_id,
        region="DefaultRegion",
        is_traced=True,
    )
    assert_same(
        answers.encode(request_, 2**40 + 5, 3, 2**33, transaction_id),
        encode_response(request_, 0, header=header),
    )


@pytest.mark.parametrize("request_", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("messages", [[], [b"one"], [b"one", b"", b"three"]])
def test_messages_found_are_handed_out_as_ever(
    request_: RemotingFrame, messages: list[bytes]
) -> None:
    header = PullResponseHeader(next_offset=2**33, min_offset=5, max_offset=2**34)
    assert_same(
        encode_found(request_, 2**33, 5, 2**34, messages),
        encode_response(request_, 0, header=header, remark="found", body=b"".join(messages)),
    )


def assert_same(template: bytes, as_ever: bytes) -> None:
    (said,), (usual,) = FrameSplitter().feed(template), FrameSplitter().feed(as_ever)
    assert read_fields(said.ext) == read_fields(usual.ext)
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body", "is_binary"):
        assert getattr(said, name) == getattr(usual, name)
