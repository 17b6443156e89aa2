"""The name server's part: routes of topics and the list of brokers, which is only this broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET

from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.rocketmq.administering import kept_name
from escrowmq.broker.rocketmq.json_answers import answer_json
from escrowmq.protocol.remoting import admin_headers, cluster_bodies
from escrowmq.protocol.remoting.codes import RequestCode

if TYPE_CHECKING:
    from escrowmq.broker.config import Identity
    from escrowmq.broker.state.expiring import Uses
    from escrowmq.broker.state.topics import Topics
    from escrowmq.transaction.memory.catalog import Catalog

#: Namespace in which tools keep the order of topics.
_ORDERS = "ORDER_TOPIC_CONFIG"


@dataclass(frozen=True, slots=True)
class Routes:
    """Handles requests of clients and tools to a name server."""

    catalog: Catalog
    topics: Topics
    uses: Uses
    identity: Identity

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, request: Request) -> None:
        """Answer where a topic's queues are."""
        topic = self.topics.named(request.header(admin_headers.RouteHeader).topic)
        self.uses.note_topics([topic.name])
        order = self.catalog.settings.get(kept_name(_ORDERS, topic.name))
        route = cluster_bodies.TopicRoute(
            brokers=(self._itself(),),
            order=UNSET if order is None else str(order.value),
            queues=(
                cluster_bodies.QueueRoute(
                    broker_name=self.identity.name,
                    read_queue_count=topic.read_queue_count,
                    write_queue_count=topic.write_queue_count,
                    permissions=topic.perm,
                ),
            ),
        )
        answer_json(request, route)

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster(self, request: Request) -> None:
        """List the brokers."""
        name = self.identity.name
        info = cluster_bodies.ClusterInfo(
            brokers={name: self._itself()}, clusters={self.identity.cluster: (name,)}
        )
        answer_json(request, info)

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def list_topics(self, request: Request) -> None:
        """List the topics."""
        names = tuple(sorted(topic.name for topic in self.topics.all()))
        answer_json(request, cluster_bodies.TopicList(topics=names))

    def _itself(self) -> cluster_bodies.BrokerRoute:
        itself = self.identity
        return cluster_bodies.BrokerRoute(
            addresses={cluster_bodies.MASTER_ID: itself.address},
            broker_name=itself.name,
            cluster=itself.cluster,
        )
