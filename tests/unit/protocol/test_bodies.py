"""JSON bodies, read from all kinds of clients and written for them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.remoting.bodies import (
    ConsumeQueueStats,
    ConsumerListResponse,
    JsonBody,
    LockRequest,
    LockResponse,
    QueueName,
    TimeSpan,
    TimeSpans,
    TopicQueueStats,
    encode_body,
    encode_consume_stats,
    encode_offsets,
    encode_topic_stats,
    read_body,
)
from escrowmq.protocol.remoting.client_bodies import (
    CheckClientRequest,
    ConnectedClient,
    ConsumerConnections,
    ConsumerMembership,
    Heartbeat,
    ProducerConnections,
    ProducerMembership,
    SubscriptionBody,
    SubscriptionOfGroup,
)
from escrowmq.protocol.remoting.cluster_bodies import (
    MASTER_ID,
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

QUEUE = QueueName(topic="orders", broker_name="broker-a", queue_id=3)
BROKER = BrokerRoute(
    broker_name="broker-a", cluster="DefaultCluster", addresses={MASTER_ID: "10.0.0.1:10911"}
)
SUBSCRIPTION = SubscriptionBody(
    topic="orders", expression="TagA", tags=("TagA",), tags_codes=(2_598_919,)
)
CONNECTION = ConnectedClient(client_id="c1", address="10.0.0.9:50000", language="GO", version=317)
TOPIC = TopicConfig(name="orders", read_queue_count=8, write_queue_count=8, permissions=6)
BODIES: list[JsonBody] = [
    LockRequest(consumer_group="g", client_id="c", queues=(QUEUE,)),
    LockResponse(queues=(QUEUE,)),
    ConsumerListResponse(client_ids=("c1", "c2")),
    Heartbeat(
        client_id="c",
        producers=(ProducerMembership(group="p"),),
        consumers=(ConsumerMembership(group="g", subscriptions=(SUBSCRIPTION,)),),
        fingerprint=-5,
    ),
    CheckClientRequest(client_id="c", group="g", subscription=SUBSCRIPTION),
    ProducerConnections(connections=(CONNECTION,)),
    ConsumerConnections(
        connections=(CONNECTION,),
        subscriptions={"orders": SUBSCRIPTION},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from="CONSUME_FROM_LAST_OFFSET",
    ),
    TopicRoute(
        brokers=(BROKER,),
        queues=(
            QueueRoute(
                broker_name="broker-a", read_queue_count=8, write_queue_count=4, permissions=6
            ),
        ),
    ),
    ClusterInfo(brokers={"broker-a": BROKER}, clusters={"DefaultCluster": ("broker-a",)}),
    TOPIC,
    TopicConfigs(version=DataVersion(changed_at_ms=5), topics={"orders": TOPIC}),
    TopicList(topics=("orders",)),
    GroupConfig(name="g", retries_max=3),
    GroupConfigs(version=DataVersion(), groups={"g": GroupConfig(name="g")}),
    GroupList(groups=("g",)),
    SubscriptionOfGroup(group="g", topic="orders", subscription=SUBSCRIPTION),
    TimeSpans(spans=(TimeSpan(queue=QUEUE, first_at_ms=1, last_at_ms=3, consumed_at_ms=2),)),
    KeyValues(table={"brokerVersionDesc": "EscrowMQ"}),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_body_is_read_as_it_was_written(body: JsonBody) -> None:
    data = encode_body(body)
    json.loads(data)
    assert read_body(type(body), data) == body


def test_nulls_count_as_absent_at_any_depth() -> None:
    data = {
        "clientID": "c",
        "producerDataSet": None,
        "consumerDataSet": [
            None,
            {
                "groupName": "g",
                "consumeType": None,
                "subscriptionDataSet": [{"topic": "t", "codeSet": None, "subVersion": "5"}],
            },
        ],
    }
    assert read_body(Heartbeat, json.dumps(data).encode()) == Heartbeat(
        client_id="c",
        consumers=(
            ConsumerMembership(group="g", subscriptions=(SubscriptionBody(topic="t", version=5),)),
        ),
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"null", "object"),
        (b"[]", "object"),
        (b"{}", "clientID"),
        (b'{"clientID":null}', "clientID"),
        (b'{"clientID":"c","producerDataSet":[{}]}', "groupName"),
        (b'{"clientID":"c","producerDataSet":{}}', "producerDataSet"),
        (b'{"clientID":"c","heartbeatFingerprint":4294967296}', "heartbeatFingerprint"),
        (b'{"clientID":"\xff"}', "utf-8"),
        (b'{"clientID":"c","x":' + b"[" * 100_000, "recursion"),
        (b'{"clientID":null,"x":' + b"[" * 900 + b"]" * 900 + b"}", ""),
    ],
)
def test_a_body_that_is_none_is_refused_and_says_why(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        read_body(Heartbeat, data)
    assert refused.value.code == "body_malformed"
    assert refused.value.fields == {"body": "Heartbeat"}
    assert says in str(refused.value)


@given(st.binary(max_size=80) | st.text('{}[]":,clientID0null ', max_size=80).map(str.encode))
def test_any_bytes_are_a_body_or_a_violation(data: bytes) -> None:
    with suppress(ProtocolViolation):
        read_body(Heartbeat, data)


def test_a_queue_is_a_key_in_the_way_all_tools_read_it() -> None:
    queue = b'{"brokerName":"broker-a","queueId":3,"topic":"orders"}'
    other = QueueName(topic="orders", broker_name="broker-a", queue_id=4)
    assert encode_offsets({QUEUE: 5, other: 6}) == b'{"offsetTable":{%b:5,%b:6}}' % (
        queue,
        queue.replace(b"3", b"4"),
    )
    topic_stats = TopicQueueStats(min_offset=1, max_offset=99, last_stored_at_ms=7)
    assert encode_topic_stats({QUEUE: topic_stats}) == (
        b'{"offsetTable":{%b:{"lastUpdateTimestamp":7,"maxOffset":99,"minOffset":1}},'
        b'"topicPutTps":0.0}' % queue
    )
    consume_stats = ConsumeQueueStats(
        broker_offset=99, consumer_offset=12, pull_offset=13, consumed_at_ms=7
    )
    assert encode_consume_stats({QUEUE: consume_stats}, 1.5) == (
        b'{"consumeTps":1.5,"offsetTable":{%b:{"brokerOffset":99,"consumerOffset":12,'
        b'"lastTimestamp":7,"pullOffset":13}}}' % queue
    )


def test_no_queues_are_an_empty_map() -> None:
    assert encode_offsets({}) == b'{"offsetTable":{}}'


def test_numbers_as_keys_are_read_as_a_java_name_server_writes_them() -> None:
    written = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a{0:,1:\\"","cluster":"DefaultCluster"}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    read = read_body(ClusterInfo, written).brokers["broker-a"]
    assert read.addresses == {MASTER_ID: "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    # A string that contains such a key stays unchanged.
    assert read.broker_name == 'broker-a{0:,1:"'
