"""JSON bodies about topics, groups, brokers and the cluster."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from escrowmq.protocol.message.limits import Name, Value
from escrowmq.protocol.remoting.bodies import JsonBody
from escrowmq.protocol.remoting.headers import Int32, Int64

#: Type of every topic's tag filter.
SINGLE_TAG = "SINGLE_TAG"

#: Id of the broker that accepts messages. Brokers with the same name and another id are replicas.
MASTER_ID = "0"


class BrokerRoute(JsonBody, frozen=True, kw_only=True):
    """A broker's addresses, ``host:port``, by broker id."""

    addresses: dict[str, str] = field(name="brokerAddrs")
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class QueueRoute(JsonBody, frozen=True, kw_only=True):
    """The number of queues that a broker has of a topic. Queue ids start at 0."""

    broker_name: str
    permissions: Int32 = field(name="perm")
    read_queue_count: Int32 = field(name="readQueueNums")
    sys_flag: Int32 = field(name="topicSysFlag", default=0)
    write_queue_count: Int32 = field(name="writeQueueNums")


class TopicRoute(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    brokers: tuple[BrokerRoute, ...] = field(name="brokerDatas")
    #: Always empty, but clients expect it.
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    #: For an ordered topic: the brokers and their queue counts, ``broker-a:4;broker-b:4``.
    order: str | UnsetType = field(name="orderTopicConf", default=UNSET)
    queues: tuple[QueueRoute, ...] = field(name="queueDatas")


class ClusterInfo(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CLUSTER_INFO: brokers by name, names by cluster."""

    brokers: dict[str, BrokerRoute] = field(name="brokerAddrTable")
    clusters: dict[str, tuple[str, ...]] = field(name="clusterAddrTable")


class DataVersion(JsonBody, frozen=True, kw_only=True):
    """When a table last changed, and how many times it has changed."""

    counter: Int64 = 0
    state_version: Int64 = 0
    changed_at_ms: Int64 = field(name="timestamp", default=0)


class TopicConfig(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_TOPIC_CONFIG."""

    attributes: dict[str, str] = field(default_factory=dict)
    is_ordered: bool = field(name="order", default=False)
    permissions: Int32 = field(name="perm")
    read_queue_count: Int32 = field(name="readQueueNums")
    filter_type: str = field(name="topicFilterType", default=SINGLE_TAG)
    name: str = field(name="topicName")
    sys_flag: Int32 = field(name="topicSysFlag", default=0)
    write_queue_count: Int32 = field(name="writeQueueNums")


class _Versioned(JsonBody, frozen=True, kw_only=True):
    """A whole table, with its version."""

    version: DataVersion = field(name="dataVersion")


class TopicConfigs(_Versioned, frozen=True, kw_only=True):
    """The answer to GET_ALL_TOPIC_CONFIG."""

    topics: dict[str, TopicConfig] = field(name="topicConfigTable")


class TopicList(JsonBody, frozen=True, kw_only=True):
    """The answer to all requests for topic names."""

    topics: tuple[str, ...] = field(name="topicList")


class ExponentialPolicy(JsonBody, frozen=True, kw_only=True):
    """Waits that grow by a factor, in milliseconds."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedPolicy(JsonBody, frozen=True, kw_only=True):
    """A wait for each retry, in milliseconds."""

    next: tuple[Int64, ...] = ()


class RetryPolicy(JsonBody, frozen=True, kw_only=True):
    """How long messages of a group wait for their retries."""

    type: Name = "CUSTOMIZED"
    exponential: ExponentialPolicy | UnsetType = field(name="exponentialRetryPolicy", default=UNSET)
    customized: CustomizedPolicy | UnsetType = field(name="customizedRetryPolicy", default=UNSET)


class GroupConfig(JsonBody, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and the answer to GET_SUBSCRIPTIONGROUP_CONFIG."""

    attributes: dict[Name, Value] = field(default_factory=dict)
    broker_id: Int64 = 0
    may_broadcast: bool = field(name="consumeBroadcastEnable", default=True)
    may_consume: bool = field(name="consumeEnable", default=True)
    may_start_at_min: bool = field(name="consumeFromMinEnable", default=True)
    is_ordered: bool = field(name="consumeMessageOrderly", default=False)
    consume_timeout_minutes: Int32 = field(name="consumeTimeoutMinute", default=15)
    name: Name = field(name="groupName")
    retry_policy: RetryPolicy = field(name="groupRetryPolicy", default=RetryPolicy())
    sys_flag: Int32 = field(name="groupSysFlag", default=0)
    is_change_notified: bool = field(name="notifyConsumerIdsChangedEnable", default=True)
    retries_max: Int32 = field(name="retryMaxTimes", default=16)
    retry_queue_count: Int32 = field(name="retryQueueNums", default=1)
    slow_broker_id: Int64 = field(name="whichBrokerWhenConsumeSlowly", default=1)


class GroupConfigs(_Versioned, frozen=True, kw_only=True):
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    groups: dict[str, GroupConfig] = field(name="subscriptionGroupTable")


class GroupList(JsonBody, frozen=True, kw_only=True):
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    groups: tuple[str, ...] = field(name="groupList")


class KeyValues(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str]
