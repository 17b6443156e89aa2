"""The name server's part: routes of topics and the list of brokers, which is only this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from escrowmq.broker.administering import kept_name
from escrowmq.broker.requests import Handlers, Request
from escrowmq.protocol.admin_headers import RouteHeader
from escrowmq.protocol.bodies import encode_body
from escrowmq.protocol.cluster_bodies import (
    MASTER_ID,
    BrokerRoute,
    ClusterInfo,
    QueueRoute,
    TopicList,
    TopicRoute,
)
from escrowmq.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker

#: Namespace in which tools keep the order of topics.
_ORDERS = "ORDER_TOPIC_CONFIG"


class Routes:
    """Handles requests of clients and tools to a name server."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
        }

    def route(self, request: Request) -> None:
        """Answer where a topic's queues are."""
        header = request.header(RouteHeader)
        topic = self._broker.topics.named(header.topic)
        self._broker.expiring.note_topics([topic.name])
        config = self._broker.config
        order = self._broker.catalog.settings.get(kept_name(_ORDERS, topic.name))
        route = TopicRoute(
            brokers=(self._itself(),),
            order=UNSET if order is None else str(order.value),
            queues=(
                QueueRoute(
                    broker_name=config.name,
                    read_queue_count=topic.read_queue_count,
                    write_queue_count=topic.write_queue_count,
                    permissions=topic.perm,
                ),
            ),
        )
        request.answer(ResponseCode.SUCCESS, body=encode_body(route))

    def cluster(self, request: Request) -> None:
        """List the brokers."""
        config = self._broker.config
        info = ClusterInfo(
            brokers={config.name: self._itself()}, clusters={config.cluster: (config.name,)}
        )
        request.answer(ResponseCode.SUCCESS, body=encode_body(info))

    def topics(self, request: Request) -> None:
        """List the topics."""
        names = tuple(sorted(topic.name for topic in self._broker.topics.all()))
        request.answer(ResponseCode.SUCCESS, body=encode_body(TopicList(topics=names)))

    def _itself(self) -> BrokerRoute:
        config = self._broker.config
        return BrokerRoute(
            addresses={MASTER_ID: self._broker.address},
            broker_name=config.name,
            cluster=config.cluster,
        )
