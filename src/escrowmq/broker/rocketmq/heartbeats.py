"""HEART_BEAT and UNREGISTER_CLIENT, and notices to consumer groups whose members change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.pulling import check_expression_type
from escrowmq.broker.state.client_links import ClientDialect, ClientLink
from escrowmq.broker.state.clients import Client, Clients, ConsumerStatement, Subscription
from escrowmq.broker.state.topics import Topics, retry_topic
from escrowmq.protocol.message.filter import parse_filter
from escrowmq.protocol.message.limits import NAME_CHARS_MAX
from escrowmq.protocol.remoting import bodies, client_bodies, consumer_headers
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.broker.net.connection import ClientConnection
    from escrowmq.broker.rocketmq.relaying import GroupNotices
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.transaction.memory.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Handles requests in which clients register and unregister."""

    catalog: Catalog
    clients: Clients[ClientLink]
    clock: BrokerClock
    groups: Groups
    topics: Topics
    notices: GroupNotices

    @handles(RequestCode.HEART_BEAT)
    def beat(self, request: Request) -> None:
        """Take a heartbeat; the broker then knows the client for two more minutes."""
        said = bodies.read_body(client_bodies.Heartbeat, request.frame.body)
        connection = request.connection
        connection.client_id = said.client_id
        now_ms = self.clock.now_ms()
        client: Client[ClientLink] = Client(
            client_id=said.client_id,
            connection=connection,
            language=request.frame.language[:NAME_CHARS_MAX],
            version=request.frame.version,
            heard_at_ms=self.clock.monotonic_ms(),
            host=connection.born_host,
            dialect=ClientDialect.BINARY if request.frame.is_binary else ClientDialect.JSON,
        )
        consumers = [one for one in said.consumers if self._is_welcome(one, now_ms)]
        # A client that omits its subscriptions must send them if the broker does not know them.
        is_news = said.fingerprint == 0 or any(
            self.clients.fingerprint(one.group) != said.fingerprint for one in consumers
        )
        changed = self.clients.hear(
            client,
            [producer.group for producer in said.producers],
            [_consuming(one, said) for one in consumers],
        )
        self.tell_changed(changed)
        request.answer(
            ResponseCode.SUCCESS,
            header=consumer_headers.HeartbeatResponseHeader(is_subscription_changed=is_news),
        )

    def _is_welcome(self, consumer: client_bodies.ConsumerMembership, now_ms: int) -> bool:
        group = self.groups.welcome(consumer.group)
        if group is None:
            return False
        if consumer.message_model != client_bodies.MODEL_BROADCASTING and group.retry_queue_count:
            self.topics.for_group(retry_topic(group.name), group.retry_queue_count, now_ms)
        return True

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, request: Request) -> None:
        """Remove a client from its groups."""
        header = request.header(consumer_headers.UnregisterHeader)
        changed = self.clients.leave(header.client_id, header.producer_group, header.consumer_group)
        self.tell_changed(changed)
        request.answer(ResponseCode.SUCCESS)

    @handles(RequestCode.CHECK_CLIENT_CONFIG)
    def check_config(self, request: Request) -> None:
        """Refuse an invalid subscription at the consumer's start, not only at its pulls."""
        if request.frame.body:
            wanted = bodies.read_body(
                client_bodies.CheckClientRequest, request.frame.body
            ).subscription
            check_expression_type(wanted.expression_type)
            parse_filter(wanted.expression)
        request.answer(ResponseCode.SUCCESS)

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def list_consumers(self, request: Request) -> None:
        """Answer with the members of a group, which share its queues."""
        header = request.header(consumer_headers.ConsumerGroupHeader)
        group = self.clients.consumers(header.consumer_group)
        if group is None:
            request.answer(ResponseCode.SYSTEM_ERROR, remark="no consumer of the group is online")
            return
        # Members share the queues by this list; gRPC clients take messages from any queue.
        ids = (
            one.client_id for one in group.members.values() if one.dialect is not ClientDialect.GRPC
        )
        body = bodies.encode_body(bodies.ConsumerListResponse(client_ids=tuple(ids)))
        request.answer(ResponseCode.SUCCESS, body=body)

    def drop(self, connection: ClientConnection) -> None:
        """Forget the clients of a closed connection."""
        self.tell_changed(self.clients.drop(connection))

    def expire(self) -> None:
        """Forget clients that were silent for too long."""
        self.tell_changed(self.clients.expire(self.clock.monotonic_ms()))

    def tell_changed(self, groups: Iterable[str]) -> None:
        """Notify the members of these groups, so that they rebalance their queues at once."""
        for name in groups:
            known = self.catalog.group(name)
            if known is None or known.is_change_notified:
                header = consumer_headers.ConsumerGroupHeader(consumer_group=name)
                self.notices.send(name, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)


def _consuming(
    said: client_bodies.ConsumerMembership, beat: client_bodies.Heartbeat
) -> ConsumerStatement:
    return ConsumerStatement(
        group=said.group,
        is_broadcast=said.message_model == client_bodies.MODEL_BROADCASTING,
        consume_type=said.consume_type,
        from_where=said.consume_from,
        fingerprint=beat.fingerprint,
        has_subscriptions=not beat.is_without_subscriptions,
        subscriptions=tuple(
            Subscription(
                topic=one.topic,
                expression=one.expression,
                codes=frozenset(one.tags_codes),
                version=one.version,
                kind=one.expression_type,
            )
            for one in said.subscriptions
        ),
    )
