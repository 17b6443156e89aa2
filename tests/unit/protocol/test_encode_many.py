"""Messages encoded in bulk have the same bytes and checksums as those encoded one by one."""

from __future__ import annotations

from itertools import accumulate

import pytest

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.stored_message import SYS_PREPARED, encode, encode_many, record_crc
from tests.unit.protocol.examples import (
    GOLDEN_IPV4_V1,
    GOLDEN_IPV6_V2,
    HOST_PAIRS,
    IPV4,
    IPV6,
    RETRY_TOPIC,
    message,
    record_of,
)


@pytest.mark.parametrize("store_host", [IPV4, IPV6])
def test_many_messages_are_laid_out_as_one_by_one(store_host: bytes) -> None:
    messages: list[SentMessage] = [
        message(reconsume_times=0),
        message(reconsume_times=0, body=b"another"),
        # Special cases: a retried message, an IPv6 host, another topic.
        message(reconsume_times=1),
        message(reconsume_times=0, born_host=IPV6),
        message(reconsume_times=0, topic=RETRY_TOPIC, properties=b""),
        message(reconsume_times=0, topic=RETRY_TOPIC, properties=b"", body=b""),
    ]
    pieces, sizes, crcs, log_offsets = encode_many(
        messages, range(7, 13), (4096, 1_700_000_000_456), store_host, SYS_PREPARED
    )
    assert log_offsets == list(accumulate(sizes[:-1], initial=4096))
    records = [
        encode(one, queue_offset, log_offset, 1_700_000_000_456, store_host, SYS_PREPARED)
        for one, queue_offset, log_offset in zip(messages, range(7, 13), log_offsets, strict=True)
    ]
    assert b"".join(pieces) == b"".join(records)
    assert sizes == list(map(len, records))
    assert crcs == list(map(record_crc, records))


@pytest.mark.parametrize("record", [GOLDEN_IPV4_V1, GOLDEN_IPV6_V2])
def test_any_one_bit_changed_is_seen(record: bytes) -> None:
    vouched = record_crc(record)
    assert vouched is not None
    for at in range(len(record)):
        for bit in range(8):
            changed = bytearray(record)
            changed[at] ^= 1 << bit
            assert record_crc(bytes(changed)) != vouched, (at, bit)


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_record_cut_anywhere_is_not_vouched_for(born_host: bytes, store_host: bytes) -> None:
    record = record_of(born_host, store_host)
    for size in range(len(record)):
        assert record_crc(record[:size]) != record_crc(record)
