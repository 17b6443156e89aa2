"""Frames, bodies and batches that RocketMQ's Java code writes, and what it reads of ours.

The note in remoting_rocketmq_java.json says how its data was made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.batch_message import decode_batch
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting import admin_headers as admin
from escrowmq.protocol.remoting import consumer_headers as consumer
from escrowmq.protocol.remoting import send_headers as send
from escrowmq.protocol.remoting.bodies import LockRequest, read_body
from escrowmq.protocol.remoting.client_bodies import CheckClientRequest
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame
from escrowmq.protocol.remoting.headers import Header, read_fields, read_header
from escrowmq.protocol.remoting.send_headers import read_send_header
from tests.unit.protocol.batches import encode_batch
from tests.unit.protocol.remoting_cases import (
    BATCH,
    BODIES,
    BODY,
    CLIENT,
    QUEUE,
    QUEUE_TABLES,
    SUBSCRIPTION,
    bodies,
    frames,
)
from tests.unit.protocol.request_headers import REQUEST_HEADERS

JAVA = json.loads(
    Path(__file__).with_name("remoting_rocketmq_java.json").read_text(encoding="utf-8")
)
VERSIONS = {"4.9.8": 409, "5.3.3": 479}
UNIQUE_KEY = "C0A80709D43118B4AAC2000000000001"
PROPERTIES = (
    f"KEYS\x01order-1 order-2\x02UNIQ_KEY\x01{UNIQUE_KEY}\x02TRAN_MSG\x01true\x02"
    'PGROUP\x01pay-group\x02WAIT\x01true\x02TAGS\x01TagA\x02buyer\x01Zoë 😀 "q"\x02'
)
SENT = send.SendHeader(
    producer_group="pay-group",
    topic="orders",
    default_topic="TBW102",
    default_queue_count=4,
    queue_id=3,
    sys_flag=4,
    born_at_ms=1_700_000_000_123,
    flag=7,
    properties=PROPERTIES,
    max_reconsume_times=16,
)
ORDERS_3 = consumer.QueueHeader(topic="orders", queue_id=3)
SHIP_GROUP = consumer.ConsumerGroupHeader(consumer_group="ship-group")
ORDERS = admin.TopicHeader(topic="orders")

#: Headers of the requests of 5.3.3.
REQUESTS: dict[str, Header] = {
    "send_v1": SENT,
    "send_v2": SENT,
    "end_transaction": send.EndTransactionHeader(
        producer_group="pay-group",
        half_offset=12,
        log_offset=4_096,
        resolution_bits=8,
        is_check_answer=True,
        unique_key=UNIQUE_KEY,
        transaction_id=UNIQUE_KEY,
    ),
    "check": send.CheckTransactionHeader(
        half_offset=12,
        log_offset=4_096,
        unique_key="U1",
        transaction_id="U1",
        offset_message_id="0A01020300002A9F0000000000001000",
    ),
    "resume_check": send.ResumeCheckHeader(offset_message_id="0A01020300002A9F0000000000001000"),
    "pull": consumer.PullHeader(
        consumer_group="ship-group",
        topic="orders",
        queue_id=3,
        queue_offset=12,
        messages_max=32,
        sys_flag=7,
        commit_offset=11,
        wait_ms=15_000,
        subscription="TagA || TagB",
        subscription_version=1_700_000_000_000,
    ),
    "send_back": consumer.SendBackHeader(
        log_offset=4_096,
        consumer_group="ship-group",
        delay_level=0,
        origin_message_id="U1",
        origin_topic="orders",
        max_reconsume_times=16,
    ),
    "query_offset": consumer.QueryOffsetHeader(
        consumer_group="ship-group", topic="orders", queue_id=3
    ),
    "update_offset": consumer.UpdateOffsetHeader(
        consumer_group="ship-group", topic="orders", queue_id=3, commit_offset=12
    ),
    "max_offset": ORDERS_3,
    "min_offset": ORDERS_3,
    "earliest": ORDERS_3,
    "search_offset": consumer.SearchOffsetHeader(
        topic="orders", queue_id=3, stored_at_ms=1_700_000_000_000, boundary="UPPER"
    ),
    "consumer_list": SHIP_GROUP,
    "ids_changed": SHIP_GROUP,
    "consumer_connections": SHIP_GROUP,
    "unregister": consumer.UnregisterHeader(client_id=CLIENT, producer_group="pay-group"),
    "query_message": admin.QueryMessageHeader(
        topic="orders",
        key="order-1",
        messages_max=64,
        begin_at_ms=0,
        end_at_ms=2**63 - 1,
        is_unique_key=True,
    ),
    "view_message": admin.ViewMessageHeader(log_offset=4_096),
    "route": admin.RouteHeader(topic="orders", accept_standard_json_only=True),
    "create_topic": admin.CreateTopicHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_count=8,
        write_queue_count=8,
        permissions=6,
        filter_type="SINGLE_TAG",
        attributes="+message.type=TRANSACTION",
    ),
    "delete_topic": ORDERS,
    "topic_stats": ORDERS,
    "delete_route": admin.DeleteRouteHeader(topic="orders", cluster="DefaultCluster"),
    "consume_stats": admin.ConsumeStatsHeader(consumer_group="ship-group"),
    "reset_offset": admin.ResetOffsetHeader(
        consumer_group="ship-group", topic="orders", stored_at_ms=-1, is_forced=True
    ),
    "producer_connections": admin.ProducerGroupHeader(producer_group="pay-group"),
    "running_info": admin.RunningInfoHeader(
        consumer_group="ship-group", client_id=CLIENT, is_stack_wanted=True
    ),
    "delete_group": admin.DeleteGroupHeader(consumer_group="ship-group", clean_offset=True),
    "get_kv": admin.KeyValueHeader(namespace="ORDER_TOPIC_CONFIG", key="orders"),
}
#: Headers that differ in 4.9.8.
OLD_REQUESTS: dict[str, Header] = {
    "search_offset": consumer.SearchOffsetHeader(
        topic="orders", queue_id=3, stored_at_ms=1_700_000_000_000
    ),
    "route": admin.RouteHeader(topic="orders"),
    "create_topic": admin.CreateTopicHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_count=8,
        write_queue_count=8,
        permissions=6,
        filter_type="SINGLE_TAG",
    ),
    "delete_route": admin.DeleteRouteHeader(topic="orders"),
    "delete_group": admin.DeleteGroupHeader(consumer_group="ship-group", remove_offset=True),
}
RESPONSES: dict[str, Header] = {
    "send_response": send.SendResponseHeader(
        offset_message_id="0A01020300002A9F0000000000001000",
        queue_id=3,
        queue_offset=12,
        transaction_id=UNIQUE_KEY,
        region="DefaultRegion",
        is_traced=True,
    ),
    "pull_response": consumer.PullResponseHeader(next_offset=13, min_offset=1, max_offset=99),
}
ONE_WAY = {"end_transaction", "check", "update_offset", "ids_changed"}
WITH_BODY = {"send_v1", "send_v2", "check", "pull_response"}
REMARKS = {
    "end_transaction": "why not",
    "pull_response": "FOUND",
    "error_response": "No topic route info for <é>",
}
#: Bodies that hold the same facts in Java's example and in ours.
SAME_BODIES = (
    "consumer_list",
    "group_configs",
    "group_list",
    "heartbeat",
    "lock",
    "locked",
    "topic_list",
)
WROTE = [
    (version, name, form)
    for version in VERSIONS
    for name in JAVA["java_wrote"][version]["frames"]
    for form in ("json", "binary")
]


def java_wrote(version: str, name: str, form: str) -> RemotingFrame:
    data = bytes.fromhex(JAVA["java_wrote"][version]["frames"][name][form])
    splitter = FrameSplitter()
    (frame,) = [frame for byte in data for frame in splitter.feed(bytes([byte]))]
    return frame


def expected_header(version: str, name: str) -> Header | None:
    if version == "4.9.8" and name in OLD_REQUESTS:
        return OLD_REQUESTS[name]
    return REQUESTS.get(name) or RESPONSES.get(name)


@pytest.mark.parametrize(("version", "name", "form"), WROTE)
def test_we_read_frames_that_java_writes(version: str, name: str, form: str) -> None:
    frame = java_wrote(version, name, form)
    assert frame.language == "JAVA"
    assert frame.version == VERSIONS[version]
    assert frame.is_binary is (form == "binary")
    assert frame.is_response is name.endswith("_response")
    assert frame.is_one_way is (name in ONE_WAY)
    assert frame.remark == REMARKS.get(name, "")
    assert frame.body == (BODY if name in WITH_BODY else b"")


@pytest.mark.parametrize(("version", "name", "form"), WROTE)
def test_we_read_headers_that_java_writes(version: str, name: str, form: str) -> None:
    frame = java_wrote(version, name, form)
    header = expected_header(version, name)
    if header is None:
        assert read_fields(frame.ext) == {}
    elif isinstance(header, send.SendHeader):
        assert read_send_header(frame.code, frame.ext) == header
    else:
        assert read_header(type(header), frame.ext) == header


@pytest.mark.parametrize("name", REQUESTS)
def test_the_header_of_a_request_is_the_one_for_its_code(name: str) -> None:
    frame = java_wrote("5.3.3", name, "json")
    kind = REQUEST_HEADERS[next(code for code in REQUEST_HEADERS if code == frame.code)]
    assert kind is (send.LongSendHeader if name == "send_v1" else type(REQUESTS[name]))


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_bodies_that_java_writes(version: str) -> None:
    wrote = JAVA["java_wrote"][version]["bodies"]
    for name in SAME_BODIES:
        body = BODIES[name]
        assert read_body(type(body), wrote[name].encode()) == body
    assert read_body(LockRequest, wrote["unlock"].encode()) == BODIES["lock"]
    assert read_body(CheckClientRequest, wrote["check_client"].encode()) == CheckClientRequest(
        client_id=CLIENT, group="ship-group", subscription=SUBSCRIPTION
    )
    route = wrote["route_standard"].encode()
    assert read_body(type(BODIES["route"]), route) == BODIES["route"]


@pytest.mark.parametrize("name", QUEUE_TABLES)
def test_we_write_queues_as_keys_as_java_does(name: str) -> None:
    wrote = JAVA["java_wrote"]["5.3.3"]["bodies"][name]
    assert QUEUE_TABLES[name].decode() == wrote
    assert QUEUE.topic in wrote


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_a_batch_that_java_writes(version: str) -> None:
    data = bytes.fromhex(JAVA["java_wrote"][version]["batch"])
    messages = decode_batch(data)
    assert [(flag, body, parse_properties(properties)) for flag, body, properties in messages] == [
        (7, b"one", {"KEYS": "k1", "WAIT": "true", "TAGS": "TagA", "buyer": "Zoë"}),
        (0, b"\x00\x01\x02", {"WAIT": "false"}),
    ]
    assert encode_batch(messages) == data


@pytest.mark.parametrize("version", VERSIONS)
def test_we_find_the_tags_that_java_finds(version: str) -> None:
    for expression, codes in JAVA["java_wrote"][version]["subscriptions"].items():
        if expression in {"", "*"}:
            assert parse_filter(expression) is None
        elif codes in ("refused", []):
            with pytest.raises(ProtocolViolation):
                parse_filter(expression)
        else:
            assert parse_filter(expression) == frozenset(codes)


@pytest.mark.parametrize("name", JAVA["java_reads"]["frames"])
def test_java_reads_frames_that_we_write(name: str) -> None:
    java = JAVA["java_reads"]["frames"][name]
    data = frames()[name]
    assert data.hex() == java["frame"]
    (frame,) = FrameSplitter().feed(data)
    assert java["read"] == {
        "code": frame.code,
        "language": frame.language,
        "version": frame.version,
        "opaque": frame.opaque,
        "is_response": frame.is_response,
        "is_one_way": frame.is_one_way,
        "remark": frame.remark,
        "ext": read_fields(frame.ext),
        "body": frame.body.hex(),
        "is_binary": frame.is_binary,
    }
    for header in java["headers"].values():
        assert header.items() <= java["read"]["ext"].items()


@pytest.mark.parametrize("name", JAVA["java_reads"]["bodies"])
def test_java_reads_bodies_that_we_write(name: str) -> None:
    java = JAVA["java_reads"]["bodies"][name]
    assert bodies()[name].decode() == java["body"]
    for version, read in java["read"].items():
        if name in BODIES:
            assert read_body(type(BODIES[name]), read.encode()) == BODIES[name]
        elif version != "4.9.8":
            assert read == java["body"]
        else:
            for part in ("pullOffset", "topicPutTps"):
                assert part not in read


def test_java_reads_a_batch_that_we_write() -> None:
    java = JAVA["java_reads"]["batch"]
    assert BATCH.hex() == java["batch"]
    assert java["read"] == [
        {"flag": flag, "body": body.hex(), "properties": parse_properties(properties)}
        for flag, body, properties in decode_batch(BATCH)
    ]
