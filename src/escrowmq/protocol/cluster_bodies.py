"""JSON bodies about topics, groups, brokers and the cluster."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from escrowmq.protocol.bodies import Body
from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name, Value

PERMISSION_READ = 0x4
PERMISSION_WRITE = 0x2
#: New topics may inherit the settings of a topic with this permission.
PERMISSION_INHERIT = 0x1

#: Id of the broker that accepts messages. Brokers with the same name and another id are replicas.
MASTER_ID = "0"


class BrokerRoute(Body, frozen=True, kw_only=True):
    """A broker's addresses, ``host:port``, by broker id."""

    addresses: dict[str, str] = field(name="brokerAddrs")
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class QueueRoute(Body, frozen=True, kw_only=True):
    """The number of queues that a broker has of a topic. Queue ids start at 0."""

    broker_name: str
    permissions: Int32 = field(name="perm")
    read_queue_count: Int32 = field(name="readQueueNums")
    sys_flag: Int32 = field(name="topicSysFlag", default=0)
    write_queue_count: Int32 = field(name="writeQueueNums")


class TopicRoute(Body, frozen=True, kw_only=True):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    brokers: tuple[BrokerRoute, ...] = field(name="brokerDatas")
    #: Always empty, but clients expect it.
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    #: For an ordered topic: the brokers and their queue counts, ``broker-a:4;broker-b:4``.
    order: str | UnsetType = field(name="orderTopicConf", default=UNSET)
    queues: tuple[QueueRoute, ...] = field(name="queueDatas")


class ClusterInfo(Body, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CLUSTER_INFO: brokers by name, names by cluster."""

    brokers: dict[str, BrokerRoute] = field(name="brokerAddrTable")
    clusters: dict[str, tuple[str, ...]] = field(name="clusterAddrTable")


class DataVersion(Body, frozen=True, kw_only=True):
    """When a table last changed, and how many times it has changed."""

    counter: Int64 = 0
    state_version: Int64 = 0
    changed_at_ms: Int64 = field(name="timestamp", default=0)


class TopicConfig(Body, frozen=True, kw_only=True):
    """The answer to GET_TOPIC_CONFIG."""

    attributes: dict[str, str] = field(default_factory=dict)
    is_ordered: bool = field(name="order", default=False)
    permissions: Int32 = field(name="perm")
    read_queue_count: Int32 = field(name="readQueueNums")
    filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    name: str = field(name="topicName")
    sys_flag: Int32 = field(name="topicSysFlag", default=0)
    write_queue_count: Int32 = field(name="writeQueueNums")


class TopicConfigs(Body, frozen=True, kw_only=True):
    """The answer to GET_ALL_TOPIC_CONFIG."""

    version: DataVersion = field(name="dataVersion")
    topics: dict[str, TopicConfig] = field(name="topicConfigTable")


class TopicList(Body, frozen=True, kw_only=True):
    """The answer to all requests for topic names."""

    topics: tuple[str, ...] = field(name="topicList")


class GroupConfig(Body, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and the answer to GET_SUBSCRIPTIONGROUP_CONFIG."""

    attributes: dict[Name, Value] = field(default_factory=dict)
    broker_id: Int64 = 0
    may_broadcast: bool = field(name="consumeBroadcastEnable", default=True)
    may_consume: bool = field(name="consumeEnable", default=True)
    may_start_at_min: bool = field(name="consumeFromMinEnable", default=True)
    is_ordered: bool = field(name="consumeMessageOrderly", default=False)
    consume_timeout_minutes: Int32 = field(name="consumeTimeoutMinute", default=15)
    name: Name = field(name="groupName")
    sys_flag: Int32 = field(name="groupSysFlag", default=0)
    is_change_notified: bool = field(name="notifyConsumerIdsChangedEnable", default=True)
    retries_max: Int32 = field(name="retryMaxTimes", default=16)
    retry_queue_count: Int32 = field(name="retryQueueNums", default=1)
    slow_broker_id: Int64 = field(name="whichBrokerWhenConsumeSlowly", default=1)


class GroupConfigs(Body, frozen=True, kw_only=True):
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    version: DataVersion = field(name="dataVersion")
    groups: dict[str, GroupConfig] = field(name="subscriptionGroupTable")


class GroupList(Body, frozen=True, kw_only=True):
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    groups: tuple[str, ...] = field(name="groupList")


class KeyValues(Body, frozen=True, kw_only=True):
    """The answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str]


class StatsItem(Body, frozen=True, kw_only=True):
    """Statistics of one period: the count, the rate per second, and the average per call."""

    average: float = field(name="avgpt")
    count: Int64 = field(name="sum")
    per_second: float = field(name="tps")


class BrokerStats(Body, frozen=True, kw_only=True):
    """The answer to VIEW_BROKER_STATS_DATA."""

    day: StatsItem = field(name="statsDay")
    hour: StatsItem = field(name="statsHour")
    minute: StatsItem = field(name="statsMinute")
