"""Columns of numbers in blocks, with bytes after them."""

from __future__ import annotations

import numpy as np
import pytest

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.native.frames import read_blocks_answer
from escrowmq.protocol.native.number_blocks import decode_blocks, encode_blocks
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.rows import StoredEntryRow
from escrowmq.protocol.native.stored_headers import ReadStoredAnswer
from escrowmq.protocol.remoting.frames import decode_frame, encode_request, encode_response

COLUMNS = [
    np.array([1, 2**62]),
    np.array([-1, 5]),
    np.array([2**32 - 1, 0]),
    np.array([7, 2**31 - 1], dtype=np.uint32),
]


def test_numbers_are_read_as_they_were_written() -> None:
    blocks = encode_blocks(StoredEntryRow, COLUMNS)
    body = b"".join((*blocks, b"bytes"))
    found, at = decode_blocks(StoredEntryRow, body, 2)
    assert [found[name].tolist() for name in StoredEntryRow.__struct_fields__] == [
        column.tolist() for column in COLUMNS
    ]
    assert body[at:] == b"bytes"
    # Little-endian numbers, which any language can read.
    assert body[:8] == bytes([1, 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("count", [-1, 3, 2**31 - 1])
def test_blocks_that_are_cut_off_are_refused(count: int) -> None:
    body = b"".join(encode_blocks(StoredEntryRow, COLUMNS))
    with pytest.raises(ProtocolViolation, match="rows_malformed"):
        decode_blocks(StoredEntryRow, body, count)


def test_an_answer_has_no_more_rows_than_allowed() -> None:
    rows_max = NATIVE_REQUESTS[NativeCode.READ_STORED].answer_rows_max
    header = ReadStoredAnswer(row_count=rows_max + 1, next_start=0, queue_start=0, queue_end=0)
    asked = decode_frame(encode_request(NativeCode.READ_STORED, 1)[4:])
    frame = decode_frame(encode_response(asked, 0, header=header)[4:])
    with pytest.raises(RequestRefused, match="too_many_rows"):
        read_blocks_answer(NativeCode.READ_STORED, frame)
