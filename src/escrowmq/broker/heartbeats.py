"""HEART_BEAT and UNREGISTER_CLIENT, and notices to consumer groups whose members change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.clients import Client, Consuming, Subscription
from escrowmq.broker.pulling import check_expression_type
from escrowmq.broker.requests import Handlers, Request
from escrowmq.broker.topics import retry_topic
from escrowmq.protocol.bodies import ConsumerListResponse, encode_body, read_body
from escrowmq.protocol.client_bodies import (
    MODEL_BROADCASTING,
    CheckClientRequest,
    ConsumerMembership,
    Heartbeat,
)
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.consumer_headers import (
    ConsumerGroupHeader,
    HeartbeatResponseHeader,
    UnregisterHeader,
)
from escrowmq.protocol.filter import parse_filter
from escrowmq.protocol.limits import NAME_CHARS_MAX
from escrowmq.protocol.remoting import encode_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.broker.broker import Broker
    from escrowmq.broker.connection import Connection


class Heartbeats:
    """Handles requests in which clients register and unregister."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_consumers,
        }

    def beat(self, request: Request) -> None:
        """Take a heartbeat; the broker then knows the client for two more minutes."""
        said = read_body(Heartbeat, request.frame.body)
        broker, connection = self._broker, request.connection
        connection.client_id = said.client_id
        now_ms = broker.clock.now_ms()
        client = Client(
            client_id=said.client_id,
            connection=connection,
            language=request.frame.language[:NAME_CHARS_MAX],
            version=request.frame.version,
            heard_at_ms=broker.clock.monotonic_ms(),
            host=connection.born_host,
            is_binary=request.frame.is_binary,
        )
        consumers = [one for one in said.consumers if self._is_welcome(one, now_ms)]
        # A client that omits its subscriptions must send them if the broker does not know them.
        is_news = said.fingerprint == 0 or any(
            broker.clients.fingerprint(one.group) != said.fingerprint for one in consumers
        )
        changed = broker.clients.hear(
            client,
            [producer.group for producer in said.producers],
            [_consuming(one, said) for one in consumers],
        )
        self.tell_changed(changed)
        request.answer(
            ResponseCode.SUCCESS, header=HeartbeatResponseHeader(is_subscription_changed=is_news)
        )

    def _is_welcome(self, consumer: ConsumerMembership, now_ms: int) -> bool:
        group = self._broker.groups.welcome(consumer.group)
        if group is None:
            return False
        if consumer.message_model != MODEL_BROADCASTING and group.retry_queue_count:
            self._broker.topics.for_group(retry_topic(group.name), group.retry_queue_count, now_ms)
        return True

    def unregister(self, request: Request) -> None:
        """Remove a client from its groups."""
        header = request.header(UnregisterHeader)
        changed = self._broker.clients.leave(
            header.client_id, header.producer_group, header.consumer_group
        )
        self.tell_changed(changed)
        request.answer(ResponseCode.SUCCESS)

    def check_config(self, request: Request) -> None:
        """Refuse an invalid subscription at the consumer's start, not only at its pulls."""
        if request.frame.body:
            wanted = read_body(CheckClientRequest, request.frame.body).subscription
            check_expression_type(wanted.expression_type)
            parse_filter(wanted.expression)
        request.answer(ResponseCode.SUCCESS)

    def list_consumers(self, request: Request) -> None:
        """Answer with the members of a group, which share its queues."""
        header = request.header(ConsumerGroupHeader)
        group = self._broker.clients.consumers(header.consumer_group)
        if group is None:
            request.answer(ResponseCode.SYSTEM_ERROR, remark="no consumer of the group is online")
            return
        body = encode_body(ConsumerListResponse(client_ids=tuple(group.members)))
        request.answer(ResponseCode.SUCCESS, body=body)

    def drop(self, connection: Connection) -> None:
        """Forget the clients of a closed connection."""
        self.tell_changed(self._broker.clients.drop(connection))

    def expire(self) -> None:
        """Forget clients that were silent for too long."""
        self.tell_changed(self._broker.clients.expire(self._broker.clock.monotonic_ms()))

    def tell_changed(self, groups: Iterable[str]) -> None:
        """Notify the members of these groups, so that they rebalance their queues at once."""
        for name in groups:
            known = self._broker.catalog.group(name)
            if known is not None and not known.is_change_notified:
                continue
            group = self._broker.clients.consumers(name)
            for member in group.members.values() if group is not None else ():
                member.connection.send(
                    encode_request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        self._broker.next_opaque(),
                        header=ConsumerGroupHeader(consumer_group=name),
                        is_one_way=True,
                    )
                )


def _consuming(said: ConsumerMembership, beat: Heartbeat) -> Consuming:
    return Consuming(
        group=said.group,
        is_broadcast=said.message_model == MODEL_BROADCASTING,
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
