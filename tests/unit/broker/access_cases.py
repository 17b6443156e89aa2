"""For each request: an example, and the grants that it needs, written by hand.

A grant is actions and a resource, such as ``Sub|Get Group:billing``, where one action is enough.
The tables of needs are not read here: the matrix compares them with these lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from escrowmq.protocol.message.ids import offset_message_id, pack_host
from escrowmq.protocol.native import headers, previews, rows
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting import admin_headers as admin
from escrowmq.protocol.remoting import bodies, client_bodies, cluster_bodies
from escrowmq.protocol.remoting import consumer_headers as consumer
from escrowmq.protocol.remoting import pop_headers as pop
from escrowmq.protocol.remoting import send_headers as send
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import Header
from tests.unit.broker.native_peer import sent, sent_in

TOPIC, GROUP, PRODUCERS = "orders", "billing", "pay"


class Stored(NamedTuple):
    """What the broker has before a request."""

    #: Log offset of a visible message in the topic.
    visible_at: int
    #: Half offset and log offset of a half message that another user sent.
    half_offset: int
    half_at: int


class Example(NamedTuple):
    """A request: its header, its body or rows."""

    header: Header | None = None
    body: bytes = b""
    rows: Sequence[NativeRow] = ()


class Case(NamedTuple):
    """A request, and what it needs."""

    make: Callable[[Stored], Example]
    grants: tuple[str, ...]


_BY_NAME: dict[str, Any] = {
    "topic": TOPIC,
    "consumer_group": GROUP,
    "group": GROUP,
    "producer_group": PRODUCERS,
    "origin_topic": TOPIC,
    "client_id": "c1",
    "cluster": "DefaultCluster",
    "user": "newcomer",
    "handle": "x",
    "receipt": "0 0 0 0 0 b 0 0",
    "default_topic": "TBW102",
    "read_queue_count": 1,
    "write_queue_count": 1,
    "permissions": 6,
    "messages_max": 1,
    "default_queue_count": 1,
    "resolution": "commit",
    "reason": "test",
    "by": "me",
}


def filled(kind: type[Header], **given: Any) -> Header:  # noqa: ANN401 - fields of the header
    """A header with plausible values in the fields that it must have."""
    values = dict(given)
    for one in msgspec.structs.fields(kind):
        if one.name in values or not one.required:
            continue
        value = _BY_NAME.get(one.name)
        if value is None:
            text = str(one.type)
            value = False if "bool" in text else 0 if "int" in text else "x"
        values[one.name] = value
    return kind(**values)


def _of(kind: type[Header], *grants: str, **given: Any) -> Case:  # noqa: ANN401 - as above
    return Case(lambda _stored: Example(filled(kind, **given)), grants)


def _body(body: bodies.JsonBody, *grants: str) -> Case:
    return Case(lambda _stored: Example(None, bodies.encode_body(body)), grants)


def _plain(*grants: str) -> Case:
    return Case(lambda _stored: Example(), grants)


def _message_id(log_offset: int) -> str:
    return offset_message_id(pack_host("127.0.0.1", 1), log_offset)


PUB = f"Pub Topic:{TOPIC}"
SUB = f"Sub Topic:{TOPIC}"
MEMBER = f"Sub Group:{GROUP}"
USES_TOPIC = f"Pub|Sub|Get Topic:{TOPIC}"
USES_GROUP = f"Sub|Get Group:{GROUP}"
GET_TOPIC, GET_GROUP = f"Get Topic:{TOPIC}", f"Get Group:{GROUP}"
DECIDES = f"Pub Group:{PRODUCERS}"
_QUEUE = bodies.QueueName(broker_name="broker-a", queue_id=0, topic=TOPIC)
_SUBSCRIPTION = client_bodies.SubscriptionBody(topic=TOPIC)
_SEND_PROPERTIES = "UNIQ_KEY\x01k9\x02"
_HEARTBEAT = client_bodies.Heartbeat(
    client_id="c1",
    producers=(client_bodies.ProducerMembership(group=PRODUCERS),),
    consumers=(client_bodies.ConsumerMembership(group=GROUP, subscriptions=(_SUBSCRIPTION,)),),
)

C = RequestCode
REMOTING_CASES: Mapping[int, Case] = {
    C.SEND_MESSAGE: _of(send.LongSendHeader, PUB, properties=_SEND_PROPERTIES),
    C.SEND_MESSAGE_V2: _of(send.SendHeader, PUB, properties=_SEND_PROPERTIES),
    C.SEND_BATCH_MESSAGE: _of(send.SendHeader, PUB),
    C.END_TRANSACTION: Case(
        lambda stored: Example(
            filled(
                send.EndTransactionHeader,
                half_offset=stored.half_offset,
                log_offset=stored.half_at,
                resolution_bits=8,
                unique_key="k1",
            )
        ),
        (DECIDES,),
    ),
    C.RECALL_MESSAGE: _of(send.RecallHeader, PUB),
    C.PULL_MESSAGE: _of(consumer.PullHeader, SUB, MEMBER, commit_offset=0, sys_flag=1),
    C.LITE_PULL_MESSAGE: _of(consumer.PullHeader, SUB, MEMBER),
    C.QUERY_CONSUMER_OFFSET: _of(consumer.QueryOffsetHeader, USES_TOPIC, USES_GROUP),
    C.UPDATE_CONSUMER_OFFSET: _of(consumer.UpdateOffsetHeader, SUB, MEMBER, commit_offset=1),
    C.SEARCH_OFFSET_BY_TIMESTAMP: _of(consumer.SearchOffsetHeader, USES_TOPIC),
    C.GET_MAX_OFFSET: _of(consumer.QueueHeader, USES_TOPIC),
    C.GET_MIN_OFFSET: _of(consumer.QueueHeader, USES_TOPIC),
    C.GET_EARLIEST_MSG_STORETIME: _of(consumer.QueueHeader, USES_TOPIC),
    C.CONSUMER_SEND_MSG_BACK: Case(
        lambda stored: Example(
            filled(consumer.SendBackHeader, log_offset=stored.visible_at, origin_topic="mine")
        ),
        (SUB, MEMBER),
    ),
    C.GET_CONSUMER_LIST_BY_GROUP: _of(consumer.ConsumerGroupHeader, USES_GROUP),
    C.LOCK_BATCH_MQ: _body(
        bodies.LockRequest(consumer_group=GROUP, client_id="c1", queues=(_QUEUE,)), SUB, MEMBER
    ),
    C.UNLOCK_BATCH_MQ: _body(
        bodies.LockRequest(consumer_group=GROUP, client_id="c1", queues=(_QUEUE,)), SUB, MEMBER
    ),
    C.QUERY_ASSIGNMENT: _body(
        pop.AssignmentRequest(topic=TOPIC, consumer_group=GROUP, client_id="c1"), SUB, MEMBER
    ),
    C.SET_MESSAGE_REQUEST_MODE: _body(
        pop.RequestModeBody(topic=TOPIC, consumer_group=GROUP), f"Update Group:{GROUP}"
    ),
    C.POP_MESSAGE: _of(pop.PopHeader, SUB, MEMBER, invisible_ms=10_000),
    C.ACK_MESSAGE: _of(pop.AckHeader, SUB, MEMBER),
    C.CHANGE_MESSAGE_INVISIBLETIME: _of(pop.ChangeInvisibleHeader, SUB, MEMBER),
    C.NOTIFICATION: _of(pop.NotificationHeader, SUB, MEMBER),
    C.POLLING_INFO: _of(consumer.ConsumedQueueHeader, USES_TOPIC, USES_GROUP),
    C.BATCH_ACK_MESSAGE: _body(
        pop.BatchAcks(
            acks=(
                pop.BatchAck(
                    group=GROUP, topic=TOPIC, queue_id=0, start_offset=0, bits=b"\1", popped_at_ms=1
                ),
            )
        ),
        SUB,
        MEMBER,
    ),
    C.HEART_BEAT: _body(_HEARTBEAT, SUB, MEMBER),
    C.UNREGISTER_CLIENT: _of(consumer.UnregisterHeader, MEMBER, consumer_group=GROUP),
    C.CHECK_CLIENT_CONFIG: _body(
        client_bodies.CheckClientRequest(client_id="c1", group=GROUP, subscription=_SUBSCRIPTION),
        SUB,
        MEMBER,
    ),
    C.GET_ROUTEINFO_BY_TOPIC: _of(admin.RouteHeader, USES_TOPIC),
    C.GET_BROKER_CLUSTER_INFO: _plain(),
    C.GET_BROKER_CONFIG: _plain(),
    C.QUERY_MESSAGE: _of(admin.QueryMessageHeader, SUB),
    C.VIEW_MESSAGE_BY_ID: Case(
        lambda stored: Example(admin.ViewMessageHeader(topic="mine", log_offset=stored.visible_at)),
        (SUB,),
    ),
    C.RESUME_CHECK_HALF_MESSAGE: Case(
        lambda stored: Example(
            send.ResumeCheckHeader(offset_message_id=_message_id(stored.half_at))
        ),
        (f"Settle Group:{PRODUCERS}",),
    ),
    C.UPDATE_AND_CREATE_TOPIC: _of(admin.CreateTopicHeader, f"Update Topic:{TOPIC}"),
    C.GET_ALL_TOPIC_CONFIG: _plain("List Topic:*"),
    C.GET_TOPIC_CONFIG: _of(admin.TopicHeader, GET_TOPIC),
    C.GET_TOPIC_STATS_INFO: _of(admin.TopicHeader, GET_TOPIC),
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _plain("List Topic:*"),
    C.DELETE_TOPIC_IN_BROKER: _of(admin.TopicHeader, f"Delete Topic:{TOPIC}"),
    C.DELETE_TOPIC_IN_NAMESRV: _of(admin.DeleteRouteHeader, f"Delete Topic:{TOPIC}"),
    C.GET_TOPICS_BY_CLUSTER: _of(admin.ClusterHeader, "List Topic:*"),
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: _plain("List Topic:*"),
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _plain("List Topic:*"),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body(
        cluster_bodies.GroupConfig(name="newgroup"), "Create Group:newgroup"
    ),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _plain("List Group:*"),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: _of(admin.GroupHeader, USES_GROUP),
    C.DELETE_SUBSCRIPTIONGROUP: _of(admin.DeleteGroupHeader, f"Delete Group:{GROUP}"),
    C.GET_CONSUMER_CONNECTION_LIST: _of(consumer.ConsumerGroupHeader, GET_GROUP),
    C.GET_PRODUCER_CONNECTION_LIST: _of(admin.ProducerGroupHeader, f"Get Group:{PRODUCERS}"),
    C.GET_CONSUME_STATS: _of(admin.ConsumeStatsHeader, USES_GROUP),
    C.INVOKE_BROKER_TO_RESET_OFFSET: _of(
        admin.ResetOffsetHeader, f"Update Group:{GROUP}", stored_at_ms=0, is_forced=True
    ),
    C.QUERY_TOPIC_CONSUME_BY_WHO: _of(admin.TopicHeader, GET_TOPIC),
    C.QUERY_CONSUME_TIME_SPAN: _of(admin.GroupTopicHeader, GET_TOPIC, GET_GROUP),
    C.QUERY_TOPICS_BY_CONSUMER: _of(admin.GroupHeader, GET_GROUP),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: _of(admin.GroupTopicHeader, GET_TOPIC, GET_GROUP),
    C.GET_CONSUMER_RUNNING_INFO: _of(admin.RunningInfoHeader, GET_GROUP),
    C.CONSUME_MESSAGE_DIRECTLY: Case(
        lambda stored: Example(
            filled(
                admin.ConsumeDirectlyHeader,
                client_id="c1",
                offset_message_id=_message_id(stored.visible_at),
            )
        ),
        (SUB, f"Update Group:{GROUP}"),
    ),
    C.GET_BROKER_RUNTIME_INFO: _plain("Get Cluster"),
    C.PUT_KV_CONFIG: _of(admin.KeyValueHeader, "Update Cluster"),
    C.GET_KV_CONFIG: _of(admin.KeyValueHeader, "Get Cluster"),
    C.DELETE_KV_CONFIG: _of(admin.KeyValueHeader, "Delete Cluster"),
}


def _native(
    code: NativeCode,
    *grants: str,
    given: Sequence[NativeRow] = (),
    **fields: Any,  # noqa: ANN401 - as above
) -> tuple[int, Case]:
    kind = NATIVE_REQUESTS[code].header
    return code, Case(lambda _stored: Example(filled(kind, **fields), rows=given), grants)


def _at_half(code: NativeCode, *grants: str, **fields: Any) -> tuple[int, Case]:  # noqa: ANN401 - as above
    kind = NATIVE_REQUESTS[code].header
    return code, Case(
        lambda stored: Example(filled(kind, half_offset=stored.half_offset, **fields)), grants
    )


EVIDENCE = "Audit Cluster"
PIPELINE = "Update Pipeline"
N = NativeCode
NATIVE_CASES: Mapping[int, Case] = dict(
    (
        _native(N.STATUS),
        _native(N.PLAN_RANGES, "Settle Group:*"),
        _native(N.LIST_TRANSACTIONS, f"Pub|Settle Group:{PRODUCERS}", producer_group=PRODUCERS),
        _native(N.LIST_HALVES, EVIDENCE),
        _native(N.LIST_OPS, EVIDENCE),
        _native(N.LIST_CHECKS, EVIDENCE),
        _native(N.LIST_QUEUES, USES_TOPIC, topic=TOPIC),
        _native(N.READ_MESSAGES, SUB),
        _native(N.AWAIT_DUE, PIPELINE),
        _native(N.LIST_BATCHES, EVIDENCE),
        _native(N.LIST_EVENTS, EVIDENCE),
        _native(N.READ_STORED, SUB, end=1),
        _native(N.FIND_ATTEMPTS, f"Pub|Settle Group:{PRODUCERS}"),
        _native(N.READ_LOG, EVIDENCE, end=100),
        _native(N.LIST_NAMES, EVIDENCE),
        (
            N.PREVIEW_HALVES,
            Case(
                lambda stored: Example(
                    previews.PreviewHalvesHeader(),
                    rows=[previews.SoughtHalfRow(stored.half_offset)],
                ),
                (f"Pub|Settle Group:{PRODUCERS}",),
            ),
        ),
        _native(N.LIST_COMPARISON, "Get Pipeline"),
        _native(N.LIST_STATE_STORE, EVIDENCE),
        _native(N.HOLD_HALVES, PUB, given=[sent()], transaction_id="t9", number=0),
        _native(N.HOLD_MANY, PUB, given=[sent_in("t8")]),
        _native(N.SEND_MANY, PUB, given=[sent()]),
        (
            N.DECIDE_MANY,
            Case(
                lambda stored: Example(
                    headers.ByHeader(by="me"),
                    rows=[rows.DecisionRow(stored.half_offset, "commit", None, stored.half_at)],
                ),
                (DECIDES,),
            ),
        ),
        _native(N.DECIDE_BATCH, "Pub Group:%SINK%app", app_id="app", query_id="q", batch_number=1),
        _native(N.OBEY_VERDICTS, "Settle Group:*"),
        _native(N.REPORT_LEDGERS, PIPELINE),
        _native(N.PIPELINE_HEARTBEAT, PIPELINE),
        _native(N.REPORT_COMPARISON, PIPELINE),
        _native(N.LIST_TOPICS, "List Topic:*"),
        _native(N.LIST_GROUPS, "List Group:*"),
        _native(N.LIST_OFFSETS, USES_GROUP, group=GROUP),
        _native(N.FIND_MESSAGES, SUB, topic=TOPIC, key="k"),
        _at_half(N.LIFE_LINE, f"Pub|Settle Group:{PRODUCERS}"),
        _at_half(N.DECIDE_BY_HAND, f"Settle Group:{PRODUCERS}"),
        _at_half(N.RESUME, f"Settle Group:{PRODUCERS}"),
        _native(N.COPY_META, EVIDENCE),
        _native(N.DELETE_TOPIC, f"Delete Topic:{TOPIC}", is_forced=True),
        _native(N.LIST_LEDGERS, "List Ledger:*"),
        _native(N.CONFIRM_CLOCK, "Update Cluster"),
        _native(N.PAUSE_GROUP, f"Update Group:{GROUP}", is_paused=True),
        _native(N.LIST_PAUSED, "List Group:*"),
        _native(N.USER_PUT, "Create Cluster"),
        _native(N.USER_REMOVE, "Delete Cluster"),
        _native(N.USER_LIST, "List Cluster"),
        _native(N.ACL_EXPLAIN, "Get Cluster", action="Pub", resource="Topic:orders", user="sender"),
    )
)
