"""What tools ask: topics and groups made, changed and removed, and how far everybody is."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.admin_headers import (
    MESSAGE_TYPE,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteRouteHeader,
    ProducerGroupHeader,
    TopicHeader,
    parse_attributes,
)
from escrowmq.protocol.bodies import (
    ConsumeQueueStats,
    Queue,
    TopicQueueStats,
    encode_body,
    encode_consume_stats,
    encode_topic_stats,
    read_body,
)
from escrowmq.protocol.client_bodies import (
    MODEL_BROADCASTING,
    MODEL_CLUSTERING,
    ConsumerConnections,
    ProducerConnections,
)
from escrowmq.protocol.client_bodies import Connection as ConnectionBody
from escrowmq.protocol.client_bodies import Subscription as SubscriptionBody
from escrowmq.protocol.cluster_bodies import (
    DataVersion,
    GroupConfig,
    GroupList,
    KeyValues,
    TopicConfig,
    TopicConfigs,
)
from escrowmq.protocol.codes import (
    LANGUAGES,
    OUR_VERSION,
    UNKNOWN_LANGUAGE,
    RequestCode,
    ResponseCode,
)
from escrowmq.protocol.consumer_headers import ConsumerGroupHeader
from escrowmq.store.meta import Group, MessageType, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.broker import Broker
    from escrowmq.broker.clients import Client
    from escrowmq.broker.connection import Connection
    from escrowmq.broker.queues import Queue as ReadQueue


#: What RocketMQ's tools read without asking whether it is there.
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
#: The last one under the names of 5.x and of 4.x.
_UNMEASURED_RATES = ("putTps", "getTransferredTps", "getTransferedTps")


class Administering:
    """Handles the requests of RocketMQ's tools."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.remove_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.remove_route,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.remove_group,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
        }

    # Topics.

    def put_topic(self, request: Request) -> None:
        """Make a topic, or change it."""
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
        self._broker.topics.put(
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
        request.answer()

    def remove_topic(self, request: Request) -> None:
        """Remove a topic."""
        self._broker.topics.remove(request.header(TopicHeader).topic)
        request.answer()

    def remove_route(self, request: Request) -> None:
        """The name server's part of it: routes are made of the topics that there are."""
        request.header(DeleteRouteHeader)
        request.answer()

    def topic(self, request: Request) -> None:
        """How a topic is set up."""
        found = self._broker.topics.named(request.header(TopicHeader).topic)
        request.answer(body=encode_body(_config(found)))

    def topics(self, request: Request) -> None:
        """How all topics are set up."""
        found = {topic.name: _config(topic) for topic in self._broker.topics.all()}
        request.answer(body=encode_body(TopicConfigs(version=DataVersion(), topics=found)))

    def topic_stats(self, request: Request) -> None:
        """Which offsets a topic's queues have."""
        topic = self._broker.topics.named(request.header(TopicHeader).topic)
        stats = {
            self._name(topic.name, queue_id): _stats(queue)
            for queue_id, queue in self._queues(topic)
        }
        request.answer(body=encode_topic_stats(stats))

    def _queues(self, topic: Topic) -> Iterator[tuple[int, ReadQueue | None]]:
        for queue_id in range(max(topic.read_queue_count, topic.write_queue_count)):
            yield queue_id, self._broker.queues.get(topic.name, queue_id)

    def _name(self, topic: str, queue_id: int) -> Queue:
        return Queue(broker_name=self._broker.config.name, queue_id=queue_id, topic=topic)

    # Groups.

    def put_group(self, request: Request) -> None:
        """Make a consumer group, or change it."""
        config = read_body(GroupConfig, request.frame.body)
        self._broker.meta.put_group(Group(name=config.name, retry_max=max(config.retries_max, 0)))
        request.answer()

    def remove_group(self, request: Request) -> None:
        """Forget a consumer group and its offsets."""
        self._broker.meta.remove_group(request.header(DeleteGroupHeader).consumer_group)
        request.answer()

    def consume_stats(self, request: Request) -> None:
        """How far a group is in every queue that it has read."""
        header = request.header(ConsumeStatsHeader)
        stats = {}
        for (group, topic, queue_id), offset in self._broker.meta.offsets.items():
            if group != header.consumer_group or header.topic not in ("", topic):
                continue
            queue = self._broker.queues.get(topic, queue_id)
            stats[self._name(topic, queue_id)] = ConsumeQueueStats(
                broker_offset=queue.end if queue else 0,
                consumer_offset=offset,
                pull_offset=offset,
                consumed_at_ms=_consumed_at_ms(queue, offset),
            )
        request.answer(body=encode_consume_stats(stats, 0.0))

    def groups_of_topic(self, request: Request) -> None:
        """Which groups read a topic."""
        topic = request.header(TopicHeader).topic
        groups = {group for group, known, _ in self._broker.meta.offsets if known == topic}
        for name in self._broker.clients.consumer_groups():
            online = self._broker.clients.consumers(name)
            if online is not None and topic in online.subscriptions:
                groups.add(name)
        request.answer(body=encode_body(GroupList(groups=tuple(sorted(groups)))))

    # Clients.

    def producers(self, request: Request) -> None:
        """Who is online of a producer group."""
        group = request.header(ProducerGroupHeader).producer_group
        members = self._broker.clients.producers(group)
        if not members:
            _nobody(request)
            return
        body = ProducerConnections(connections=tuple(map(_connection, members)))
        request.answer(body=encode_body(body))

    def consumers(self, request: Request) -> None:
        """Who is online of a consumer group, and what they subscribe to."""
        group = self._broker.clients.consumers(request.header(ConsumerGroupHeader).consumer_group)
        if group is None:
            _nobody(request)
            return
        said = group.said
        body = ConsumerConnections(
            connections=tuple(map(_connection, group.members.values())),
            subscriptions={
                topic: SubscriptionBody(
                    topic=topic,
                    expression=one.expression,
                    expression_type=one.kind,
                    version=one.version,
                    tags_codes=tuple(sorted(one.codes)),
                )
                for topic, one in group.subscriptions.items()
            },
            consume_type=said.consume_type,
            message_model=MODEL_BROADCASTING if said.is_broadcast else MODEL_CLUSTERING,
            consume_from=said.from_where,
        )
        request.answer(body=encode_body(body))

    # The broker.

    def runtime_info(self, request: Request) -> None:
        """What tools show of a broker; rates that are not measured here are 0."""
        log = self._broker.store.log
        table = dict.fromkeys(_UNMEASURED, "0")
        table |= dict.fromkeys(_UNMEASURED_RATES, "0.0 0.0 0.0")
        table |= {
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": f"EscrowMQ {version('escrowmq')}",
            "brokerActive": "true",
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(self._broker.store.settled),
            "earliestMessageTimeStamp": str(log.segments[0].first_at_ms if log.segments else -1),
            "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
        }
        request.answer(body=encode_body(KeyValues(table=table)))


def _nobody(request: Request) -> None:
    request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark="nobody of the group is online")


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


def _consumed_at_ms(queue: ReadQueue | None, offset: int) -> int:
    """When the last message that was consumed had become visible; 0 if none is known."""
    if queue is None or not queue.start < offset <= queue.end:
        return 0
    return queue.at_ms(offset - 1)


def _connection(client: Client[Connection]) -> ConnectionBody:
    return ConnectionBody(
        client_id=client.client_id,
        address=client.connection.address,
        language=client.language if client.language in LANGUAGES else UNKNOWN_LANGUAGE,
        version=client.version,
    )
