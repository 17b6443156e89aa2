"""What is said from a template is what would be said without."""

from __future__ import annotations

import pytest

from escrowmq.protocol.headers import read_fields
from escrowmq.protocol.ids import offset_message_id
from escrowmq.protocol.remoting import Frame, FrameSplitter, decode_frame, encode_response
from escrowmq.protocol.send_headers import SendResponseHeader
from escrowmq.protocol.sent_answers import SentAnswers
from tests.unit.protocol.examples import IPV4, IPV6
from tests.unit.protocol.frames import binary_header, frame_of, json_header

JSON = decode_frame(frame_of(json_header(opaque=2**31 - 1))[4:])
BINARY = decode_frame(frame_of(binary_header(), header_type=1)[4:])


@pytest.mark.parametrize("request_", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("store_host", [IPV4, IPV6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("transaction_id", [None, "", "7F0000", 'ü "quoted" \\ %d'])
def test_an_answer_from_the_template_says_the_same(
    request_: Frame, store_host: bytes, transaction_id: str | None
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
    (usual,) = FrameSplitter().feed(encode_response(request_, 0, header=header))
    (said,) = FrameSplitter().feed(answers.encode(request_, 2**40 + 5, 3, 2**33, transaction_id))
    assert read_fields(said.ext) == read_fields(usual.ext)
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body", "is_binary"):
        assert getattr(said, name) == getattr(usual, name)
