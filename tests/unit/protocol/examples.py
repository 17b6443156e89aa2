"""Messages and their bytes, written out by hand, for the tests of the layout."""

from __future__ import annotations

from typing import Any

import msgspec

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.stored_message import SYS_COMPRESSED, SYS_PREPARED, encode

IPV4 = bytes.fromhex("7f000001 00002a9f")
IPV6 = bytes.fromhex("fd00000000000000000000000000beef 00002a9f")
HOST_PAIRS = [(IPV4, IPV4), (IPV6, IPV4), (IPV4, IPV6), (IPV6, IPV6)]

ORDER = SentMessage(
    topic="orders",
    queue_id=3,
    body=b"123456789",
    properties=b"TAGS\x01TagA\x02",
    flag=-2,
    sys_flag=SYS_COMPRESSED,
    born_at_ms=0x018BCFE5687B,
    born_host=bytes.fromhex("c0a80709 0000d431"),
    reconsume_times=5,
)
GOLDEN_IPV4_V1 = bytes.fromhex(
    "00000074"  # 91 + 9 + 6 + 10 = 116 bytes
    "daa320a7"  # v1
    "4bf43926"  # CRC-32 of 123456789 is cbf43926; the highest bit is cleared
    "00000003"  # queue id
    "fffffffe"  # flag
    "000000000000000c"  # queue offset
    "0000000000001000"  # log offset
    "00000005"  # sys flag: compressed, prepared
    "0000018bcfe5687b"  # born at
    "c0a80709 0000d431"  # born host
    "0000018bcfe569c8"  # stored at
    "7f000001 00002a9f"  # store host
    "00000005"  # reconsume times
    "0000000000000800"  # prepared offset
    "00000009 313233343536373839"  # body
    "06 6f7264657273"  # topic
    "000a 5441475301 5461674102"  # properties
)

RETRY_TOPIC = "%RETRY%" + "g" * 121
RETRY = SentMessage(
    topic=RETRY_TOPIC, queue_id=0, body=b"", born_host=IPV6, sys_flag=0x0300, born_at_ms=1
)
GOLDEN_IPV6_V2 = bytes.fromhex(
    "000000f4"  # 91 + 12 + 12 + 1 + 128 = 244 bytes
    "daa320ab"  # v2
    "00000000"  # CRC-32 of nothing
    "00000000"  # queue id
    "00000000"  # flag
    "0000000000000001"  # queue offset
    "0000000000000002"  # log offset
    "00000330"  # sys flag: compression type 3, both hosts IPv6
    "0000000000000001"  # born at
    "fd00000000000000000000000000beef 00002a9f"  # born host
    "0000000000000003"  # stored at
    "fd00000000000000000000000000beef 00002a9f"  # store host
    "00000000"  # reconsume times
    "0000000000000000"  # prepared offset
    "00000000"  # body
    "0080 25524554525925"  # topic, 128 bytes: %RETRY%
    f"{'67' * 121}"  # and 121 times g
    "0000"  # properties
)


def message(**changes: Any) -> SentMessage:  # noqa: ANN401 - any of a message's fields.
    return msgspec.structs.replace(ORDER, **changes)


def record_of(born_host: bytes = IPV4, store_host: bytes = IPV4, topic: str = "orders") -> bytes:
    half = message(born_host=born_host, topic=topic)
    return encode(half, 12, 4096, 1_700_000_000_456, store_host, SYS_PREPARED)
