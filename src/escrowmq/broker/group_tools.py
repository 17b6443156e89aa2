"""Requests of RocketMQ's tools about groups: their settings, members, and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.catalog import Group
from escrowmq.protocol.admin_headers import (
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
    TopicHeader,
)
from escrowmq.protocol.bodies import (
    ConsumeQueueStats,
    Queue,
    TimeSpan,
    TimeSpans,
    encode_body,
    encode_consume_stats,
    read_body,
)
from escrowmq.protocol.client_bodies import (
    MODEL_BROADCASTING,
    MODEL_CLUSTERING,
    ConsumerConnections,
    ProducerConnections,
    SubscriptionOfGroup,
)
from escrowmq.protocol.client_bodies import Connection as ConnectionBody
from escrowmq.protocol.client_bodies import Subscription as SubscriptionBody
from escrowmq.protocol.cluster_bodies import (
    DataVersion,
    GroupConfig,
    GroupConfigs,
    GroupList,
    TopicList,
)
from escrowmq.protocol.codes import LANGUAGES, UNKNOWN_LANGUAGE, RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import ConsumerGroupHeader
from escrowmq.transaction.commands import RemoveGroup

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.clients import Client, Subscription
    from escrowmq.broker.connection import Connection
    from escrowmq.broker.queues import Queue as ReadQueue


class GroupTools:
    """Handles the requests of RocketMQ's tools that are about groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.remove_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
        }

    # Groups.

    def put_group(self, request: Request) -> None:
        """Create a consumer group, or change it."""
        config = read_body(GroupConfig, request.frame.body)
        command = self._broker.groups.put(
            Group(
                name=config.name,
                retry_max=max(config.retries_max, 0),
                retry_queue_count=max(config.retry_queue_count, 0),
                may_consume=config.may_consume,
                may_broadcast=config.may_broadcast,
                is_change_notified=config.is_change_notified,
            )
        )
        self._broker.submit(request, command, lambda _: request.answer())

    def remove_group(self, request: Request) -> None:
        """Remove a consumer group and its offsets."""
        group = request.header(DeleteGroupHeader).consumer_group
        command = RemoveGroup(name=group, by=request.connection.peer)
        self._broker.submit(request, command, lambda _: request.answer())

    def group(self, request: Request) -> None:
        """Answer with a consumer group's configuration."""
        found = self._broker.groups.named(request.header(GroupHeader).consumer_group)
        request.answer(body=encode_body(_config(found)))

    def groups(self, request: Request) -> None:
        """Answer with the configuration of all consumer groups."""
        kept = self._broker.catalog.groups
        found = {name: _config(one.group) for name, one in kept.items()}
        request.answer(body=encode_body(GroupConfigs(version=DataVersion(), groups=found)))

    def consume_stats(self, request: Request) -> None:
        """Answer with a group's offsets in every queue of the topics that it has read."""
        header = request.header(ConsumeStatsHeader)
        broker = self._broker
        group = header.consumer_group
        topics = {topic for reader, topic, _ in broker.meta.offsets if reader == group}
        stats = {}
        for topic in sorted(topics if not header.topic else topics & {header.topic}):
            found = broker.topics.get(topic)
            for queue_id in range(found.read_queue_count if found is not None else 0):
                queue = broker.queues.get(topic, queue_id)
                # A queue without a committed offset counts too: all of its messages lag.
                offset = broker.meta.offsets.get((group, topic, queue_id), 0)
                name = Queue(broker_name=broker.config.name, queue_id=queue_id, topic=topic)
                stats[name] = ConsumeQueueStats(
                    broker_offset=queue.end if queue else 0,
                    consumer_offset=offset,
                    pull_offset=offset,
                    consumed_at_ms=_consumed_at_ms(queue, offset),
                )
        request.answer(body=encode_consume_stats(stats, 0.0))

    def groups_of_topic(self, request: Request) -> None:
        """Answer with the groups that read a topic."""
        topic = request.header(TopicHeader).topic
        groups = {group for group, known, _ in self._broker.meta.offsets if known == topic}
        for name in self._broker.clients.consumer_groups():
            online = self._broker.clients.consumers(name)
            if online is not None and topic in online.subscriptions:
                groups.add(name)
        request.answer(body=encode_body(GroupList(groups=tuple(sorted(groups)))))

    def topics_of_group(self, request: Request) -> None:
        """Answer with the topics that a group has read."""
        wanted = request.header(GroupHeader).consumer_group
        topics = {topic for group, topic, _ in self._broker.meta.offsets if group == wanted}
        request.answer(body=encode_body(TopicList(topics=tuple(sorted(topics)))))

    def time_spans(self, request: Request) -> None:
        """Answer with the times of a topic's first, last and last consumed message, by queue."""
        header = request.header(GroupTopicHeader)
        broker = self._broker
        topic = broker.topics.named(header.topic)
        now_ms = broker.clock.now_ms()
        spans = []
        for queue_id in range(topic.write_queue_count):
            queue = broker.queues.get(topic.name, queue_id)
            offset = broker.meta.offsets.get((header.consumer_group, topic.name, queue_id), 0)
            name = Queue(broker_name=broker.config.name, queue_id=queue_id, topic=topic.name)
            spans.append(_time_span(name, queue, offset, now_ms))
        request.answer(body=encode_body(TimeSpans(spans=tuple(spans))))

    def subscription(self, request: Request) -> None:
        """Answer with an online group's subscription to a topic, or with none."""
        header = request.header(GroupTopicHeader)
        group = self._broker.clients.consumers(header.consumer_group)
        known = group.subscriptions.get(header.topic) if group is not None else None
        body = SubscriptionOfGroup(
            group=header.consumer_group,
            topic=header.topic,
            subscription=None if known is None else _subscription(known),
        )
        request.answer(body=encode_body(body))

    # Clients.

    def producers(self, request: Request) -> None:
        """Answer with the online members of a producer group."""
        group = request.header(ProducerGroupHeader).producer_group
        members = self._broker.clients.producers(group)
        if not members:
            _nobody(request)
            return
        body = ProducerConnections(connections=tuple(map(_connection, members)))
        request.answer(body=encode_body(body))

    def consumers(self, request: Request) -> None:
        """Answer with the online members of a consumer group and their subscriptions."""
        group = self._broker.clients.consumers(request.header(ConsumerGroupHeader).consumer_group)
        if group is None:
            _nobody(request)
            return
        said = group.said
        body = ConsumerConnections(
            connections=tuple(map(_connection, group.members.values())),
            subscriptions={topic: _subscription(one) for topic, one in group.subscriptions.items()},
            consume_type=said.consume_type,
            message_model=MODEL_BROADCASTING if said.is_broadcast else MODEL_CLUSTERING,
            consume_from=said.from_where,
        )
        request.answer(body=encode_body(body))


def _nobody(request: Request) -> None:
    request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark="nobody of the group is online")


def _config(group: Group) -> GroupConfig:
    return GroupConfig(
        name=group.name,
        retries_max=group.retry_max,
        retry_queue_count=group.retry_queue_count,
        may_consume=group.may_consume,
        may_broadcast=group.may_broadcast,
        is_change_notified=group.is_change_notified,
    )


def _subscription(known: Subscription) -> SubscriptionBody:
    return SubscriptionBody(
        topic=known.topic,
        expression=known.expression,
        expression_type=known.kind,
        version=known.version,
        tags_codes=tuple(sorted(known.codes)),
    )


def _time_span(name: Queue, queue: ReadQueue | None, offset: int, now_ms: int) -> TimeSpan:
    if queue is None or queue.start == queue.end:
        return TimeSpan(queue=name)
    first, last = queue.at_ms(queue.start), queue.at_ms(queue.end - 1)
    delay_ms = 0
    if queue.start <= offset < queue.end:
        delay_ms = now_ms - queue.at_ms(offset)
    return TimeSpan(
        queue=name,
        first_at_ms=first,
        last_at_ms=last,
        consumed_at_ms=_consumed_at_ms(queue, offset) or first,
        delay_ms=delay_ms,
    )


def _consumed_at_ms(queue: ReadQueue | None, offset: int) -> int:
    """Return when the last consumed message became visible, or 0 if that is unknown."""
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
