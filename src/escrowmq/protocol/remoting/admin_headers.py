"""Headers of the requests with which tools inspect and change topics, groups and messages."""

from __future__ import annotations

from msgspec import field

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import Name, Searched, Value
from escrowmq.protocol.remoting.consumer_headers import ConsumerGroupHeader
from escrowmq.protocol.remoting.headers import Header, Int32, Int64

#: Topic attribute that names the kind of messages the topic accepts.
MESSAGE_TYPE = "message.type"
ATTRIBUTES_MAX = 64


class TopicHeader(Header, frozen=True, kw_only=True):
    """Requests about a topic.

    GET_TOPIC_STATS_INFO, GET_TOPIC_CONFIG, QUERY_TOPIC_CONSUME_BY_WHO and DELETE_TOPIC_IN_BROKER
    have no other field.
    """

    topic: Name


class RouteHeader(TopicHeader, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC. The broker always answers in standard JSON."""

    accept_standard_json_only: bool = False


class CreateTopicHeader(TopicHeader, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC."""

    default_topic: Name
    read_queue_count: Int32 = field(name="readQueueNums")
    write_queue_count: Int32 = field(name="writeQueueNums")
    permissions: Int32 = field(name="perm")
    filter_type: Name = field(name="topicFilterType")
    sys_flag: Int32 = field(name="topicSysFlag", default=0)
    is_ordered: bool = field(name="order", default=False)
    #: See ``parse_attributes``.
    attributes: Value = ""
    is_forced: bool = field(name="force", default=False)


class DeleteRouteHeader(TopicHeader, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV."""

    cluster: Name = field(name="clusterName", default="")


class ClusterHeader(Header, frozen=True, kw_only=True):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: Name


class QueryMessageHeader(TopicHeader, frozen=True, kw_only=True):
    """QUERY_MESSAGE: search by key or by unique key."""

    key: Searched
    messages_max: Int32 = field(name="maxNum")
    begin_at_ms: Int64 = field(name="beginTimestamp")
    end_at_ms: Int64 = field(name="endTimestamp")
    is_unique_key: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageResponseHeader(Header, frozen=True, kw_only=True):
    """Store time and log offset up to which the key index is complete."""

    indexed_at_ms: Int64 = field(name="indexLastUpdateTimestamp")
    indexed_log_offset: Int64 = field(name="indexLastUpdatePhyoffset")


class ViewMessageHeader(Header, frozen=True, kw_only=True):
    """VIEW_MESSAGE_BY_ID. The log offset comes from an offset message id."""

    topic: Name = ""
    log_offset: Int64 = field(name="offset")


class ProducerGroupHeader(Header, frozen=True, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: Name


class GroupHeader(Header, frozen=True, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER."""

    consumer_group: Name = field(name="group")


class GroupTopicHeader(GroupHeader, frozen=True, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER, QUERY_CONSUME_TIME_SPAN."""

    topic: Name


class DeleteGroupHeader(Header, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP."""

    consumer_group: Name = field(name="groupName")
    clean_offset: bool = False
    #: The name that 4.x tools use for ``clean_offset``.
    remove_offset: bool = False


class ConsumeStatsHeader(ConsumerGroupHeader, frozen=True, kw_only=True):
    """GET_CONSUME_STATS, for one topic or for all of them."""

    topic: Name = ""


class RunningInfoHeader(ConsumerGroupHeader, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO, which the broker forwards to the client."""

    client_id: Name
    is_stack_wanted: bool = field(name="jstackEnable", default=False)


class ConsumeDirectlyHeader(ConsumerGroupHeader, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY, which the broker forwards to the client with the message."""

    client_id: Name = ""
    offset_message_id: Name = field(name="msgId", default="")
    broker_name: Name = ""
    topic: Name = ""


class ResetOffsetHeader(GroupTopicHeader, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET from broker to clients."""

    #: A negative number means all queues.
    queue_id: Int32 = -1
    offset: Int64 | None = None
    stored_at_ms: Int64 = field(name="timestamp")
    is_forced: bool = field(name="isForce", default=False)


class KeyValueHeader(Header, frozen=True, kw_only=True):
    """PUT_KV_CONFIG, GET_KV_CONFIG, DELETE_KV_CONFIG. Tools keep the order of topics there."""

    namespace: Name
    key: Name
    value: Value = ""


class KeyValueResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to GET_KV_CONFIG."""

    value: str | None = None


class BrokerConfigResponseHeader(Header, frozen=True, kw_only=True):
    """The version of the settings in the body."""

    version: str


def parse_attributes(text: str) -> dict[str, str | None]:
    """Parse changes like ``+message.type=TRANSACTION,-queue.type``; None removes an attribute."""
    changes: dict[str, str | None] = {}
    for change in text.split(",") if text else ():
        name, equals, value = change.strip().partition("=")
        sign, name = name[:1], name[1:]
        is_sound = value if sign == "+" else sign == "-" and not equals
        if not name or not is_sound or name in changes or len(changes) >= ATTRIBUTES_MAX:
            raise ProtocolViolation(
                "attributes_malformed", "not +name=value or -name, each once", change=change[:128]
            )
        changes[name] = value or None
    return changes
