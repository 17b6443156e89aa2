"""Requests, responses and bodies of ours that RocketMQ's Java code reads.

remoting_rocketmq_java.json records what it read.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.protocol.remoting.admin_headers import QueryMessageResponseHeader
from escrowmq.protocol.remoting.bodies import (
    ConsumeQueueStats,
    ConsumerListResponse,
    JsonBody,
    LockRequest,
    LockResponse,
    QueueName,
    TopicQueueStats,
    encode_body,
    encode_consume_stats,
    encode_offsets,
    encode_topic_stats,
)
from escrowmq.protocol.remoting.client_bodies import (
    ConnectedClient,
    ConsumerConnections,
    ConsumerMembership,
    Heartbeat,
    ProducerConnections,
    ProducerMembership,
    SubscriptionBody,
)
from escrowmq.protocol.remoting.cluster_bodies import (
    BrokerRoute,
    ClusterInfo,
    DataVersion,
    GroupConfig,
    GroupConfigs,
    GroupList,
    KeyValues,
    QueueRoute,
    TopicConfig,
    TopicConfigs,
    TopicList,
    TopicRoute,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    ConsumerGroupHeader,
    HeartbeatResponseHeader,
    OffsetResponseHeader,
    PullHeader,
    PullResponseHeader,
    StoreTimeResponseHeader,
)
from escrowmq.protocol.remoting.frames import (
    RemotingFrame,
    decode_frame,
    encode_request,
    encode_response,
)
from escrowmq.protocol.remoting.headers import Header
from escrowmq.protocol.remoting.send_headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    SendHeader,
    SendResponseHeader,
)
from tests.unit.protocol.batches import encode_batch
from tests.unit.protocol.frames import binary_frame, json_frame

BODY = "pay 5 €".encode()
CLIENT = "10.0.0.9@42#7"
QUEUE = QueueName(topic="orders", broker_name="broker-a", queue_id=3)

REQUESTS: dict[str, tuple[int, Header | None, bytes, bool]] = {
    "check": (
        RequestCode.CHECK_TRANSACTION_STATE,
        CheckTransactionHeader(
            topic="RMQ_SYS_TRANS_HALF_TOPIC",
            half_offset=12,
            log_offset=4_096,
            unique_key="U1",
            transaction_id="U1",
            offset_message_id="0A01020300002A9F0000000000001000",
            broker_name="broker-a",
        ),
        BODY,
        True,
    ),
    "ids_changed": (
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        ConsumerGroupHeader(consumer_group="ship-group"),
        b"",
        True,
    ),
    "send_v2": (
        RequestCode.SEND_MESSAGE_V2,
        SendHeader(
            producer_group="pay-group",
            topic="orders",
            default_topic="TBW102",
            default_queue_count=4,
            queue_id=3,
            sys_flag=4,
            born_at_ms=1_700_000_000_123,
            flag=7,
            properties='UNIQ_KEY\x01U1\x02buyer\x01Zoë 😀 "q"\x02',
            max_reconsume_times=16,
            broker_name="broker-a",
        ),
        BODY,
        False,
    ),
    "end_transaction": (
        RequestCode.END_TRANSACTION,
        EndTransactionHeader(
            topic="orders",
            producer_group="pay-group",
            half_offset=12,
            log_offset=4_096,
            resolution_bits=12,
            is_check_answer=True,
            unique_key="U1",
            transaction_id="U1",
            broker_name="broker-a",
        ),
        b"",
        True,
    ),
    "pull": (
        RequestCode.PULL_MESSAGE,
        PullHeader(
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
            bytes_max=65_536,
        ),
        b"",
        False,
    ),
    "no_header": (RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", False),
}
RESPONSES: dict[str, tuple[int, Header | None, str, bytes]] = {
    "send": (
        ResponseCode.SUCCESS,
        SendResponseHeader(
            offset_message_id="0A01020300002A9F0000000000001000",
            queue_id=3,
            queue_offset=12,
            transaction_id="U1",
            region="DefaultRegion",
            is_traced=True,
        ),
        "",
        b"",
    ),
    "pull": (
        ResponseCode.SUCCESS,
        PullResponseHeader(next_offset=13, min_offset=1, max_offset=99),
        "FOUND",
        BODY,
    ),
    "offset": (ResponseCode.SUCCESS, OffsetResponseHeader(offset=2**40), "", b""),
    "earliest": (
        ResponseCode.SUCCESS,
        StoreTimeResponseHeader(stored_at_ms=1_700_000_000_000),
        "",
        b"",
    ),
    "heartbeat": (ResponseCode.SUCCESS, HeartbeatResponseHeader(), "", b""),
    "query_message": (
        ResponseCode.SUCCESS,
        QueryMessageResponseHeader(indexed_at_ms=5, indexed_log_offset=6),
        "",
        BODY,
    ),
    "error": (ResponseCode.TOPIC_NOT_EXIST, None, 'no topic "é😀"\n', b""),
}
BROKER = BrokerRoute(
    broker_name="broker-a", cluster="DefaultCluster", addresses={"0": "10.0.0.1:10911"}
)
SUBSCRIPTION = SubscriptionBody(
    topic="orders",
    expression="TagA || TagB",
    version=1_700_000_000_000,
    tags=("TagA", "TagB"),
    tags_codes=(2_598_919, 2_598_920),
)
CONNECTION = ConnectedClient(
    client_id=CLIENT, address="10.0.0.9:50000", language="PYTHON", version=479
)
TOPIC = TopicConfig(name="orders", read_queue_count=8, write_queue_count=8, permissions=6)
VERSION = DataVersion(changed_at_ms=1_700_000_000_000)

BODIES: dict[str, JsonBody] = {
    "heartbeat": Heartbeat(
        client_id=CLIENT,
        producers=(ProducerMembership(group="pay-group"),),
        consumers=(ConsumerMembership(group="ship-group", subscriptions=(SUBSCRIPTION,)),),
    ),
    "lock": LockRequest(consumer_group="ship-group", client_id=CLIENT, queues=(QUEUE,)),
    "locked": LockResponse(queues=(QUEUE,)),
    "consumer_list": ConsumerListResponse(client_ids=(CLIENT,)),
    "route": TopicRoute(
        brokers=(BROKER,),
        queues=(
            QueueRoute(
                broker_name="broker-a", read_queue_count=8, write_queue_count=8, permissions=6
            ),
        ),
    ),
    "cluster": ClusterInfo(
        brokers={"broker-a": BROKER}, clusters={"DefaultCluster": ("broker-a",)}
    ),
    "producers": ProducerConnections(connections=(CONNECTION,)),
    "consumers": ConsumerConnections(
        connections=(CONNECTION,),
        subscriptions={"orders": SUBSCRIPTION},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from="CONSUME_FROM_LAST_OFFSET",
    ),
    "topic_config": TOPIC,
    "topic_configs": TopicConfigs(version=VERSION, topics={"orders": TOPIC}),
    "topic_list": TopicList(topics=("orders",)),
    "group_config": GroupConfig(name="ship-group", retries_max=3),
    "group_configs": GroupConfigs(
        version=VERSION, groups={"ship-group": GroupConfig(name="ship-group")}
    ),
    "group_list": GroupList(groups=("ship-group",)),
    "key_values": KeyValues(table={"brokerVersionDesc": "EscrowMQ"}),
}
QUEUE_TABLES = {
    "topic_stats": encode_topic_stats(
        {QUEUE: TopicQueueStats(min_offset=1, max_offset=99, last_stored_at_ms=1_700_000_000_000)}
    ),
    "consume_stats": encode_consume_stats(
        {
            QUEUE: ConsumeQueueStats(
                broker_offset=99,
                consumer_offset=12,
                pull_offset=13,
                consumed_at_ms=1_700_000_000_000,
            )
        },
        1.5,
    ),
    "reset": encode_offsets({QUEUE: 5}),
}
BATCH = encode_batch([(7, b"one", "buyer\x01Zoë\x02".encode()), (0, b"\x00\x01\x02", b"")])


def frames() -> dict[str, bytes]:
    """Return each request and response, with a JSON and with a binary header."""
    made = {}
    writers: dict[str, tuple[Callable[..., bytes], bool]] = {
        "json": (json_frame, False),
        "binary": (binary_frame, True),
    }
    for form, (asked, is_binary) in writers.items():
        for name, (code, header, body, is_one_way) in REQUESTS.items():
            made[f"{name}_request_{form}"] = encode_request(
                code, 7, header=header, body=body, is_one_way=is_one_way, is_binary=is_binary
            )
        request: RemotingFrame = decode_frame(asked()[4:])
        for name, (code, header, remark, body) in RESPONSES.items():
            made[f"{name}_response_{form}"] = encode_response(
                request, code, header=header, remark=remark, body=body
            )
    return made


def bodies() -> dict[str, bytes]:
    return {name: encode_body(body) for name, body in BODIES.items()} | QUEUE_TABLES
