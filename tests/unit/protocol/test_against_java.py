"""The same bytes and answers as RocketMQ's own Java code.

The note in rocketmq_java.json says how its data was made.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.ids import offset_message_id, pack_host
from escrowmq.protocol.message.limits import validate
from escrowmq.protocol.message.message_views import half_topic_view, patch_committed
from escrowmq.protocol.message.properties import find_property, parse_properties, tags_code
from escrowmq.protocol.message.stored_message import (
    SYS_PREPARED,
    SYS_TRANSACTION_MASK,
    StoredMessage,
    decode,
    encode,
)

JAVA = json.loads(Path(__file__).with_name("rocketmq_java.json").read_text(encoding="utf-8"))

BORN_IPV4 = pack_host("192.168.7.9", 54_321)
BORN_IPV6 = pack_host("2001:db8::42", 54_321)
STORE_IPV4 = pack_host("10.1.2.3", 10_911)
STORE_IPV6 = pack_host("fd00::beef", 10_911)
STORED_AT_MS = 1_700_000_000_456
LONG_TOPIC = "%RETRY%" + "g" * 150
PROPERTIES = (
    "KEYS\x01order-1 order-2\x02TAGS\x01TagA\x02"
    "UNIQ_KEY\x01C0A80709D43118B4AAC2000000000001\x02buyer\x01Zoë\x02"
).encode()


def message(
    topic: str = "orders",
    *,
    born_host: bytes = BORN_IPV4,
    body: bytes = "pay 5 € to Zoë".encode(),
    properties: bytes = PROPERTIES,
) -> SentMessage:
    return SentMessage(
        topic=topic,
        queue_id=3,
        body=body,
        properties=properties,
        flag=-7,
        born_at_ms=1_700_000_000_123,
        born_host=born_host,
        reconsume_times=2,
    )


OURS = {
    "ipv4_v1": encode(message(), 12, 4096, STORED_AT_MS, STORE_IPV4),
    "ipv6_born_v1": encode(message(born_host=BORN_IPV6), 12, 4096, STORED_AT_MS, STORE_IPV4),
    "ipv6_store_v1": encode(message(), 12, 4096, STORED_AT_MS, STORE_IPV6),
    "ipv6_both_v2": encode(
        message(LONG_TOPIC, born_host=BORN_IPV6),
        2**40,
        2**41,
        STORED_AT_MS,
        STORE_IPV6,
        SYS_PREPARED,
        77,
    ),
    "empty_body": encode(message(body=b"", properties=b""), 12, 4096, STORED_AT_MS, STORE_IPV4),
    "committed": patch_committed(
        encode(message(born_host=BORN_IPV6), 12, 4096, STORED_AT_MS, STORE_IPV4, SYS_PREPARED),
        99,
        1_700_000_001_000,
        4096,
    ),
    "half_view": half_topic_view(
        encode(message(LONG_TOPIC), 12, 4096, STORED_AT_MS, STORE_IPV6, SYS_PREPARED), 5
    ),
}


def unpack_host(host: bytes) -> tuple[str, int]:
    return str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


def as_java_shows(stored: StoredMessage) -> dict[str, Any]:
    born_address, born_port = unpack_host(stored.born_host)
    store_address, store_port = unpack_host(stored.store_host)
    return {
        "size": stored.size,
        "body_crc": stored.body_crc,
        "queue_id": stored.queue_id,
        "flag": stored.flag,
        "queue_offset": stored.queue_offset,
        "log_offset": stored.log_offset,
        "sys_flag": stored.sys_flag,
        "born_at_ms": stored.born_at_ms,
        "born_host": born_address,
        "born_port": born_port,
        "stored_at_ms": stored.stored_at_ms,
        "store_host": store_address,
        "store_port": store_port,
        "reconsume_times": stored.reconsume_times,
        "prepared_offset": stored.prepared_offset,
        "body": stored.body.hex() or None,
        "topic": stored.topic,
        "properties": parse_properties(stored.properties) or None,
        "message_id": offset_message_id(stored.store_host, stored.log_offset),
    }


def shortened(read: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with short IPv6 addresses, because Java writes every zero."""
    hosts = {key: str(ip_address(read[key])) for key in ("born_host", "store_host")}
    return read | hosts


@pytest.mark.parametrize("name", OURS)
def test_java_reads_what_we_write(name: str) -> None:
    java = JAVA["java_reads"][name]
    assert OURS[name].hex() == java["record"]
    assert as_java_shows(decode(OURS[name])) == shortened(java["read"])


@pytest.mark.parametrize("name", JAVA["java_wrote"])
def test_we_read_what_java_writes_and_would_write_the_same(name: str) -> None:
    java = JAVA["java_wrote"][name]
    record = bytes.fromhex(java["record"])
    stored = decode(record)
    assert as_java_shows(stored) == shortened(java["read"])
    again = message(stored.topic, born_host=stored.born_host, properties=stored.properties)
    assert record == encode(
        again,
        stored.queue_offset,
        stored.log_offset,
        stored.stored_at_ms,
        stored.store_host,
        stored.sys_flag & SYS_TRANSACTION_MASK,
        stored.prepared_offset,
    )


@pytest.mark.parametrize("case", JAVA["properties"], ids=lambda case: ascii(case["text"]))
def test_properties_are_read_as_java_reads_them(case: dict[str, Any]) -> None:
    data = case["text"].encode()
    assert parse_properties(data) == case["read"]
    for name, value in case["read"].items():
        assert find_property(data, name.encode()) == value.encode()


@pytest.mark.parametrize(("tags", "code"), JAVA["hash_codes"].items())
def test_a_tags_code_is_javas_hash_code(tags: str, code: int) -> None:
    assert tags_code(tags) == code


@pytest.mark.parametrize(("topic", "is_legal"), JAVA["topic_is_legal"].items())
def test_a_topic_is_legal_if_java_says_so(topic: str, is_legal: bool) -> None:  # noqa: FBT001
    if is_legal:
        validate(message(topic))
    else:
        with pytest.raises(RequestRefused, match="topic_illegal"):
            validate(message(topic))


@pytest.mark.parametrize(("address", "message_id"), JAVA["message_ids"].items())
def test_a_message_id_is_the_one_java_makes(address: str, message_id: str) -> None:
    assert offset_message_id(pack_host(address, 10_911), 1_234_567_890_123) == message_id
