"""Requests of RocketMQ's tools about groups: their settings, members, and offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.group_requests import GroupRequests
from escrowmq.broker.rocketmq.json_answers import answer_json
from escrowmq.broker.rocketmq.retry_policies import backoff_of, policy_of
from escrowmq.model.catalog import Group
from escrowmq.protocol.remoting import admin_headers, bodies, client_bodies, cluster_bodies
from escrowmq.protocol.remoting.codes import LANGUAGES, UNKNOWN_LANGUAGE, RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import ConsumerGroupHeader
from escrowmq.transaction.commands import RemoveGroup

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Client, Clients, Subscription
    from escrowmq.broker.state.queues import Queues, ReadableQueue
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.store.meta.meta import Meta


@dataclass(frozen=True, slots=True)
class GroupTools(GroupRequests):
    """Handles the requests of RocketMQ's tools that are about groups."""

    clock: BrokerClock
    clients: Clients[ClientLink]
    meta: Meta
    queues: Queues
    identity: Identity

    # Groups.

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def put_group(self, request: Request) -> None:
        """Create a consumer group, or change it."""
        config = bodies.read_body(cluster_bodies.GroupConfig, request.frame.body)
        command = self.groups.put(
            Group(
                name=config.name,
                retry_max=max(config.retries_max, 0),
                retry_queue_count=max(config.retry_queue_count, 0),
                may_consume=config.may_consume,
                may_broadcast=config.may_broadcast,
                is_change_notified=config.is_change_notified,
                is_ordered=config.is_ordered,
                backoff=backoff_of(config.retry_policy),
            )
        )
        self.answering.submit(request, command, lambda _: request.answer())

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def remove_group(self, request: Request) -> None:
        """Remove a consumer group and its offsets."""
        group = request.header(admin_headers.DeleteGroupHeader).consumer_group
        command = RemoveGroup(name=group, by=request.by)
        self.answering.submit(request, command, lambda _: request.answer())

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group(self, request: Request) -> None:
        """Answer with a consumer group's configuration."""
        found = self.groups.named(request.header(admin_headers.GroupHeader).consumer_group)
        answer_json(request, _config(found))

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def list_groups(self, request: Request) -> None:
        """Answer with the configuration of all consumer groups."""
        found = {group.name: _config(group) for group in self.groups.all()}
        answer_json(
            request, cluster_bodies.GroupConfigs(version=cluster_bodies.DataVersion(), groups=found)
        )

    @handles(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, request: Request) -> None:
        """Answer with a group's offsets in every queue of the topics that it has read."""
        header = request.header(admin_headers.ConsumeStatsHeader)
        group = header.consumer_group
        topics = {topic for reader, topic, _ in self.meta.offsets if reader == group}
        stats = {}
        for topic in sorted(topics if not header.topic else topics & {header.topic}):
            found = self.topics.get(topic)
            for queue_id in range(found.read_queue_count if found is not None else 0):
                queue = self.queues.get(topic, queue_id)
                # A queue without a committed offset counts too: all of its messages lag.
                offset = self.meta.offsets.get((group, topic, queue_id), 0)
                name = bodies.QueueName(
                    broker_name=self.identity.name, queue_id=queue_id, topic=topic
                )
                stats[name] = bodies.ConsumeQueueStats(
                    broker_offset=queue.end if queue else 0,
                    consumer_offset=offset,
                    pull_offset=offset,
                    consumed_at_ms=_consumed_at_ms(queue, offset),
                )
        request.answer(body=bodies.encode_consume_stats(stats, 0.0))

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, request: Request) -> None:
        """Answer with the groups that read a topic."""
        topic = request.header(admin_headers.TopicHeader).topic
        groups = {group for group, known, _ in self.meta.offsets if known == topic}
        online = self.clients.online_groups()
        groups.update(one.said.group for one in online if topic in one.subscriptions)
        answer_json(request, cluster_bodies.GroupList(groups=tuple(sorted(groups))))

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, request: Request) -> None:
        """Answer with the topics that a group has read."""
        wanted = request.header(admin_headers.GroupHeader).consumer_group
        topics = {topic for group, topic, _ in self.meta.offsets if group == wanted}
        answer_json(request, cluster_bodies.TopicList(topics=tuple(sorted(topics))))

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, request: Request) -> None:
        """Answer with the times of a topic's first, last and last consumed message, by queue."""
        header = request.header(admin_headers.GroupTopicHeader)
        topic = self.topics.named(header.topic)
        now_ms = self.clock.now_ms()
        spans = []
        for queue_id in range(topic.write_queue_count):
            queue = self.queues.get(topic.name, queue_id)
            offset = self.meta.offsets.get((header.consumer_group, topic.name, queue_id), 0)
            name = bodies.QueueName(
                broker_name=self.identity.name, queue_id=queue_id, topic=topic.name
            )
            spans.append(_time_span(name, queue, offset, now_ms))
        answer_json(request, bodies.TimeSpans(spans=tuple(spans)))

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, request: Request) -> None:
        """Answer with an online group's subscription to a topic, or with none."""
        header = request.header(admin_headers.GroupTopicHeader)
        group = self.clients.consumers(header.consumer_group)
        known = group.subscriptions.get(header.topic) if group is not None else None
        body = client_bodies.SubscriptionOfGroup(
            group=header.consumer_group,
            topic=header.topic,
            subscription=None if known is None else _subscription(known),
        )
        answer_json(request, body)

    # Clients.

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producers(self, request: Request) -> None:
        """Answer with the online members of a producer group."""
        group = request.header(admin_headers.ProducerGroupHeader).producer_group
        members = self.clients.producers(group)
        if not members:
            _no_client(request)
            return
        body = client_bodies.ProducerConnections(connections=tuple(map(_connection, members)))
        answer_json(request, body)

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumers(self, request: Request) -> None:
        """Answer with the online members of a consumer group and their subscriptions."""
        group = self.clients.consumers(request.header(ConsumerGroupHeader).consumer_group)
        if group is None:
            _no_client(request)
            return
        said = group.said
        body = client_bodies.ConsumerConnections(
            connections=tuple(map(_connection, group.members.values())),
            subscriptions={topic: _subscription(one) for topic, one in group.subscriptions.items()},
            consume_type=said.consume_type,
            message_model=client_bodies.MODEL_BROADCASTING
            if said.is_broadcast
            else client_bodies.MODEL_CLUSTERING,
            consume_from=said.from_where,
        )
        answer_json(request, body)


def _no_client(request: Request) -> None:
    request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark="no client of the group is online")


def _config(group: Group) -> cluster_bodies.GroupConfig:
    return cluster_bodies.GroupConfig(
        name=group.name,
        retries_max=group.retry_max,
        retry_queue_count=group.retry_queue_count,
        may_consume=group.may_consume,
        may_broadcast=group.may_broadcast,
        is_change_notified=group.is_change_notified,
        is_ordered=group.is_ordered,
        retry_policy=policy_of(group.backoff),
    )


def _subscription(known: Subscription) -> client_bodies.SubscriptionBody:
    return client_bodies.SubscriptionBody(
        topic=known.topic,
        expression=known.expression,
        tags_codes=tuple(sorted(known.codes)),
        expression_type=known.kind,
        version=known.version,
    )


def _time_span(
    name: bodies.QueueName, queue: ReadableQueue | None, offset: int, now_ms: int
) -> bodies.TimeSpan:
    if queue is None or queue.start == queue.end:
        return bodies.TimeSpan(queue=name)
    first, last = queue.at_ms(queue.start), queue.at_ms(queue.end - 1)
    delay_ms = 0
    if queue.start <= offset < queue.end:
        delay_ms = now_ms - queue.at_ms(offset)
    return bodies.TimeSpan(
        queue=name,
        first_at_ms=first,
        last_at_ms=last,
        consumed_at_ms=_consumed_at_ms(queue, offset) or first,
        delay_ms=delay_ms,
    )


def _consumed_at_ms(queue: ReadableQueue | None, offset: int) -> int:
    """Return when the last consumed message became visible, or 0 if that is unknown."""
    if queue is None or not queue.start < offset <= queue.end:
        return 0
    return queue.at_ms(offset - 1)


def _connection(client: Client[ClientLink]) -> client_bodies.ConnectedClient:
    return client_bodies.ConnectedClient(
        client_id=client.client_id,
        address=client.connection.address,
        language=client.language if client.language in LANGUAGES else UNKNOWN_LANGUAGE,
        version=client.version,
    )
