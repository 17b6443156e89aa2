"""Requests of RocketMQ's tools about topics and the broker; those about groups are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.native.status import OUR_RELEASE
from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.json_answers import answer_json
from escrowmq.broker.state.topics import Topics
from escrowmq.model.catalog import MessageType, Setting, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS
from escrowmq.protocol.remoting import admin_headers, bodies, cluster_bodies
from escrowmq.protocol.remoting.codes import OUR_VERSION, RequestCode, ResponseCode
from escrowmq.transaction.commands import PutSetting, RemoveSetting

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.queues import Queues, ReadableQueue
    from escrowmq.broker.state.reach import Reach
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.store.store import Store


#: RocketMQ's tools read these keys without checking that they exist.
_UNMEASURED = (
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "EndTransactionQueueSize",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "msgPutTotalTodayNow",
    "msgPutTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "pageCacheLockTimeMills",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
)
#: RocketMQ 5.x and 4.x spell the last key differently, so the answer has both spellings.
_UNMEASURED_RATES = ("putTps", "getTransferredTps", "getTransferedTps")


@dataclass(frozen=True, slots=True)
class Administering:
    """Handles requests of RocketMQ's tools about topics, their values, and the broker."""

    answering: Answering
    store: Store
    clock: BrokerClock
    topics: Topics
    queues: Queues
    reach: Reach
    identity: Identity

    # Topics.

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def put_topic(self, request: Request) -> None:
        """Create a topic, or change it."""
        header = request.header(admin_headers.CreateTopicHeader)
        known = self.topics.get(header.topic)
        attributes = dict(known.attributes) if known is not None else {}
        for name, value in admin_headers.parse_attributes(header.attributes).items():
            if value is None:
                attributes.pop(name, None)
            else:
                attributes[name] = value
        kind = str(attributes.get(admin_headers.MESSAGE_TYPE, MessageType.NORMAL))
        if kind not in MessageType.__members__:
            raise RequestRefused(
                "message_type_unknown", f"one of {', '.join(MessageType)}", message_type=kind
            )
        command = self.topics.put(
            Topic(
                name=header.topic,
                read_queue_count=header.read_queue_count,
                write_queue_count=header.write_queue_count,
                perm=header.permissions,
                message_type=MessageType(kind),
                attributes=attributes,
                created_at_ms=known.created_at_ms if known else self.clock.now_ms(),
            )
        )
        self.answering.submit(request, command, lambda _: request.answer())

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    def remove_topic(self, request: Request) -> None:
        """Remove a topic; refused while half messages in it are undecided."""
        topic = request.header(admin_headers.TopicHeader).topic
        command = self.topics.remove(topic, by=request.by)
        self.answering.submit(request, command, lambda _: request.answer())

    @handles(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def remove_route(self, request: Request) -> None:
        """Only acknowledge: routes follow from the topics, so there is no route to delete."""
        request.header(admin_headers.DeleteRouteHeader)
        request.answer()

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def topic(self, request: Request) -> None:
        """Answer with a topic's configuration."""
        found = self.topics.named(request.header(admin_headers.TopicHeader).topic)
        answer_json(request, _config(found))

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    def list_topics(self, request: Request) -> None:
        """Answer with the configuration of all topics."""
        found = {topic.name: _config(topic) for topic in self.topics.all()}
        answer_json(
            request, cluster_bodies.TopicConfigs(version=cluster_bodies.DataVersion(), topics=found)
        )

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, request: Request) -> None:
        """Answer with the minimum and maximum offset of each queue of a topic."""
        topic = self.topics.named(request.header(admin_headers.TopicHeader).topic)
        stats = {}
        for queue_id in range(topic.queue_count):
            told = _stats(self.queues.get(topic.name, queue_id))
            self.reach.tell(request.connection, topic.name, queue_id, told.max_offset)
            queue = bodies.QueueName(
                broker_name=self.identity.name, queue_id=queue_id, topic=topic.name
            )
            stats[queue] = told
        request.answer(body=bodies.encode_topic_stats(stats))

    @handles(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, request: Request) -> None:
        """Answer with the topics of a cluster; the list is empty unless the cluster is ours."""
        is_ours = request.header(admin_headers.ClusterHeader).cluster == self.identity.cluster
        names = [topic.name for topic in self.topics.all()] if is_ours else []
        answer_json(request, cluster_bodies.TopicList(topics=tuple(sorted(names))))

    @handles(
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    )
    def system_topics(self, request: Request) -> None:
        """Answer with the names of the broker's own topics."""
        answer_json(request, cluster_bodies.TopicList(topics=tuple(sorted(SYSTEM_TOPICS))))

    # Values that tools keep in a name server, such as the order of a topic's queues.

    @handles(RequestCode.PUT_KV_CONFIG)
    def put_value(self, request: Request) -> None:
        """Store a value."""
        header = request.header(admin_headers.KeyValueHeader)
        name = kept_name(header.namespace, header.key)
        command = PutSetting(setting=Setting(name=name, value=header.value))
        self.answering.submit(request, command, lambda _: request.answer())

    @handles(RequestCode.GET_KV_CONFIG)
    def value(self, request: Request) -> None:
        """Answer with a stored value."""
        header = request.header(admin_headers.KeyValueHeader)
        kept = self.store.catalog.settings.get(kept_name(header.namespace, header.key))
        if kept is None:
            request.answer(ResponseCode.QUERY_NOT_FOUND, remark="no such value")
            return
        request.answer(header=admin_headers.KeyValueResponseHeader(value=str(kept.value)))

    @handles(RequestCode.DELETE_KV_CONFIG)
    def remove_value(self, request: Request) -> None:
        """Delete a value."""
        header = request.header(admin_headers.KeyValueHeader)
        command = RemoveSetting(name=kept_name(header.namespace, header.key))
        self.answering.submit(request, command, lambda _: request.answer())

    # The broker.

    @handles(RequestCode.GET_BROKER_CONFIG)
    def settings(self, request: Request) -> None:
        """Answer with the broker's configuration under RocketMQ's names."""
        itself, policy = self.identity, self.store.core.policy
        host, _, port = itself.address.rpartition(":")
        values = {
            "brokerName": itself.name,
            "brokerClusterName": itself.cluster,
            "brokerId": cluster_bodies.MASTER_ID,
            "brokerIP1": host,
            "listenPort": port,
            "autoCreateTopicEnable": "true" if self.topics.get(DEFAULT_TOPIC) else "false",
            "maxMessageSize": BODY_BYTES_MAX,
            "transactionTimeOut": policy.check_after_ms,
            "transactionCheckInterval": policy.check_interval_ms,
            "transactionCheckMax": policy.checks_max,
        }
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        header = admin_headers.BrokerConfigResponseHeader(
            version=bodies.encode_body(cluster_bodies.DataVersion()).decode()
        )
        request.answer(header=header, body=text.encode())

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, request: Request) -> None:
        """Answer with what tools show of a broker; the broker reports unmeasured values as 0."""
        log = self.store.log
        table = dict.fromkeys(_UNMEASURED, "0")
        table |= dict.fromkeys(_UNMEASURED_RATES, "0.0 0.0 0.0")
        table |= {
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": f"EscrowMQ {OUR_RELEASE}",
            "brokerActive": "true",
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(self.store.durable_end),
            "earliestMessageTimeStamp": str(log.segments[0].first_at_ms if log.segments else -1),
            "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
        }
        answer_json(request, cluster_bodies.KeyValues(table=table))


def kept_name(namespace: str, key: str) -> str:
    """Return the name of a tool's value in our settings."""
    return f"kv/{namespace}/{key}"


def _config(topic: Topic) -> cluster_bodies.TopicConfig:
    return cluster_bodies.TopicConfig(
        name=topic.name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permissions=topic.perm,
        attributes={name: str(value) for name, value in topic.attributes.items()},
    )


def _stats(queue: ReadableQueue | None) -> bodies.TopicQueueStats:
    if queue is None or queue.start == queue.end:
        end = queue.end if queue else 0
        return bodies.TopicQueueStats(min_offset=end, max_offset=end, last_stored_at_ms=0)
    return bodies.TopicQueueStats(
        min_offset=queue.start,
        max_offset=queue.end,
        last_stored_at_ms=queue.at_ms(queue.end - 1),
    )
