"""Requests of RocketMQ's tools about topics and the broker; ``group_tools.py`` has the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.broker.status import OUR_RELEASE
from escrowmq.broker.topics import DEFAULT_TOPIC, SYSTEM_TOPICS
from escrowmq.model.catalog import MessageType, Setting, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.admin_headers import (
    MESSAGE_TYPE,
    BrokerConfigResponseHeader,
    ClusterHeader,
    CreateTopicHeader,
    DeleteRouteHeader,
    KeyValueHeader,
    KeyValueResponseHeader,
    TopicHeader,
    parse_attributes,
)
from escrowmq.protocol.bodies import Queue, TopicQueueStats, encode_body, encode_topic_stats
from escrowmq.protocol.cluster_bodies import (
    MASTER_ID,
    DataVersion,
    KeyValues,
    TopicConfig,
    TopicConfigs,
    TopicList,
)
from escrowmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from escrowmq.protocol.limits import BODY_BYTES_MAX
from escrowmq.transaction.commands import PutSetting, RemoveSetting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.broker import Broker
    from escrowmq.broker.queues import Queue as ReadQueue


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


class Administering:
    """Handles the requests of RocketMQ's tools."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.remove_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.remove_route,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_CONFIG: self.settings,
            RequestCode.PUT_KV_CONFIG: self.put_value,
            RequestCode.GET_KV_CONFIG: self.value,
            RequestCode.DELETE_KV_CONFIG: self.remove_value,
        }

    # Topics.

    def put_topic(self, request: Request) -> None:
        """Create a topic, or change it."""
        header = request.header(CreateTopicHeader)
        known = self._broker.topics.get(header.topic)
        attributes = dict(known.attributes) if known is not None else {}
        for name, value in parse_attributes(header.attributes).items():
            if value is None:
                attributes.pop(name, None)
            else:
                attributes[name] = value
        kind = str(attributes.get(MESSAGE_TYPE, MessageType.NORMAL))
        if kind not in MessageType.__members__:
            raise RequestRefused(
                "message_type_unknown", f"one of {', '.join(MessageType)}", message_type=kind
            )
        command = self._broker.topics.put(
            Topic(
                name=header.topic,
                read_queue_count=header.read_queue_count,
                write_queue_count=header.write_queue_count,
                perm=header.permissions,
                message_type=MessageType(kind),
                attributes=attributes,
                created_at_ms=known.created_at_ms if known else self._broker.clock.now_ms(),
            )
        )
        self._broker.submit(request, command, lambda _: request.answer())

    def remove_topic(self, request: Request) -> None:
        """Remove a topic; refused while half messages in it are undecided."""
        topic = request.header(TopicHeader).topic
        command = self._broker.topics.remove(topic, by=request.connection.peer)
        self._broker.submit(request, command, lambda _: request.answer())

    def remove_route(self, request: Request) -> None:
        """Only acknowledge: routes follow from the topics, so there is no route to delete."""
        request.header(DeleteRouteHeader)
        request.answer()

    def topic(self, request: Request) -> None:
        """Answer with a topic's configuration."""
        found = self._broker.topics.named(request.header(TopicHeader).topic)
        request.answer(body=encode_body(_config(found)))

    def topics(self, request: Request) -> None:
        """Answer with the configuration of all topics."""
        found = {topic.name: _config(topic) for topic in self._broker.topics.all()}
        request.answer(body=encode_body(TopicConfigs(version=DataVersion(), topics=found)))

    def topic_stats(self, request: Request) -> None:
        """Answer with the minimum and maximum offset of each queue of a topic."""
        topic = self._broker.topics.named(request.header(TopicHeader).topic)
        stats = {
            self._name(topic.name, queue_id): _stats(queue)
            for queue_id, queue in self._queues(topic)
        }
        for queue, told in stats.items():
            self._broker.reach.tell(request.connection, topic.name, queue.queue_id, told.max_offset)
        request.answer(body=encode_topic_stats(stats))

    def _queues(self, topic: Topic) -> Iterator[tuple[int, ReadQueue | None]]:
        for queue_id in range(max(topic.read_queue_count, topic.write_queue_count)):
            yield queue_id, self._broker.queues.get(topic.name, queue_id)

    def _name(self, topic: str, queue_id: int) -> Queue:
        return Queue(broker_name=self._broker.config.name, queue_id=queue_id, topic=topic)

    def topics_of_cluster(self, request: Request) -> None:
        """Answer with the topics of a cluster; the list is empty unless the cluster is ours."""
        is_ours = request.header(ClusterHeader).cluster == self._broker.config.cluster
        names = [topic.name for topic in self._broker.topics.all()] if is_ours else []
        request.answer(body=encode_body(TopicList(topics=tuple(sorted(names)))))

    def system_topics(self, request: Request) -> None:
        """Answer with the names of the broker's own topics."""
        request.answer(body=encode_body(TopicList(topics=tuple(sorted(SYSTEM_TOPICS)))))

    # Values that tools keep in a name server, such as the order of a topic's queues.

    def put_value(self, request: Request) -> None:
        """Store a value."""
        header = request.header(KeyValueHeader)
        name = kept_name(header.namespace, header.key)
        command = PutSetting(setting=Setting(name=name, value=header.value))
        self._broker.submit(request, command, lambda _: request.answer())

    def value(self, request: Request) -> None:
        """Answer with a stored value."""
        header = request.header(KeyValueHeader)
        kept = self._broker.catalog.settings.get(kept_name(header.namespace, header.key))
        if kept is None:
            request.answer(ResponseCode.QUERY_NOT_FOUND, remark="no such value")
            return
        request.answer(header=KeyValueResponseHeader(value=str(kept.value)))

    def remove_value(self, request: Request) -> None:
        """Delete a value."""
        header = request.header(KeyValueHeader)
        command = RemoveSetting(name=kept_name(header.namespace, header.key))
        self._broker.submit(request, command, lambda _: request.answer())

    # The broker.

    def settings(self, request: Request) -> None:
        """Answer with the broker's configuration under RocketMQ's names."""
        broker = self._broker
        config, policy = broker.config, broker.store.core.policy
        host, _, port = broker.address.rpartition(":")
        values = {
            "brokerName": config.name,
            "brokerClusterName": config.cluster,
            "brokerId": MASTER_ID,
            "brokerIP1": host,
            "listenPort": port,
            "autoCreateTopicEnable": broker.topics.get(DEFAULT_TOPIC) is not None,
            "maxMessageSize": BODY_BYTES_MAX,
            "transactionTimeOut": policy.check_after_ms,
            "transactionCheckInterval": policy.check_interval_ms,
            "transactionCheckMax": policy.checks_max,
        }
        text = "".join(f"{name}={_java_text(value)}\n" for name, value in values.items())
        header = BrokerConfigResponseHeader(version=encode_body(DataVersion()).decode())
        request.answer(header=header, body=text.encode())

    def runtime_info(self, request: Request) -> None:
        """Answer with what tools show of a broker; the broker reports unmeasured values as 0."""
        log = self._broker.store.log
        table = dict.fromkeys(_UNMEASURED, "0")
        table |= dict.fromkeys(_UNMEASURED_RATES, "0.0 0.0 0.0")
        table |= {
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": f"EscrowMQ {OUR_RELEASE}",
            "brokerActive": "true",
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(self._broker.store.settled),
            "earliestMessageTimeStamp": str(log.segments[0].first_at_ms if log.segments else -1),
            "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
        }
        request.answer(body=encode_body(KeyValues(table=table)))


def kept_name(namespace: str, key: str) -> str:
    """Return the name of a tool's value in our settings."""
    return f"kv/{namespace}/{key}"


def _java_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config(topic: Topic) -> TopicConfig:
    return TopicConfig(
        name=topic.name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permissions=topic.perm,
        attributes={name: str(value) for name, value in topic.attributes.items()},
    )


def _stats(queue: ReadQueue | None) -> TopicQueueStats:
    if queue is None or queue.start == queue.end:
        end = queue.end if queue else 0
        return TopicQueueStats(min_offset=end, max_offset=end, last_stored_at_ms=0)
    return TopicQueueStats(
        min_offset=queue.start,
        max_offset=queue.end,
        last_stored_at_ms=queue.at_ms(queue.end - 1),
    )
