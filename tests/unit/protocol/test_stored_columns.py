"""Messages encoded by column have the same bytes as those encoded by `encode_many`."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.protocol.message.stored_columns import encode_columns
from escrowmq.protocol.message.stored_message import SYS_PREPARED, encode_many
from tests.unit.columns import columns_of
from tests.unit.protocol.examples import IPV4, RETRY_TOPIC, message

ADDED = {("orders", 1): b"A\x01a\x02", ("orders", 7): b"", (RETRY_TOPIC, 0): b"B\x01" + b"b" * 500}


@pytest.mark.parametrize("bits", [0, SYS_PREPARED])
def test_many_messages_are_laid_out_as_one_by_one(bits: int) -> None:
    sent = [
        message(queue_id=7, reconsume_times=0),
        message(queue_id=1, reconsume_times=0, body=b"", properties=b"", flag=2**31 - 1),
        message(queue_id=0, topic=RETRY_TOPIC, reconsume_times=0, body=b"x" * 70_000),
        # The sender's transaction and host bits in `sys_flag` are ignored.
        message(queue_id=1, reconsume_times=0, sys_flag=0x3D, born_at_ms=-1),
    ]
    stored = [
        msgspec.structs.replace(one, properties=one.properties + ADDED[one.topic, one.queue_id])
        for one in sent
    ]
    columns = columns_of(sent, ADDED)
    pieces, sizes, crcs, log_offsets = encode_columns(columns, 12, (4096, 1_700), IPV4, bits)
    expected = encode_many(stored, range(12, 16), (4096, 1_700), IPV4, bits)
    assert b"".join(pieces) == b"".join(expected[0])
    assert (sizes.tolist(), crcs, log_offsets.tolist()) == expected[1:]
    assert columns.size == sum(len(one.body) + len(one.properties) for one in stored)
    assert [(one.topic, one.queue_id, one.body) for one in columns.contents()] == [
        (one.topic, one.queue_id, one.body) for one in sent
    ]
