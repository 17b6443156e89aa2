"""QueryRoute and QueryAssignment: where a topic's queues are, and from which to receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.codes import ok
from escrowmq.broker.grpc.names import group_of, topic_of
from escrowmq.broker.grpc.requests import GrpcRequest, serves
from escrowmq.model.catalog import READ, WRITE, MessageType, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcMessageType, GrpcPermission, GrpcScheme
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS

if TYPE_CHECKING:
    from escrowmq.broker.grpc.place import GrpcPlace
    from escrowmq.broker.state.expiring import Uses
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.topics import Topics

ANY_QUEUE = -1
_PERMISSIONS = {
    0: GrpcPermission.NONE,
    READ: GrpcPermission.READ,
    WRITE: GrpcPermission.WRITE,
    READ | WRITE: GrpcPermission.READ_WRITE,
}
_EVERY_TYPE = (
    GrpcMessageType.NORMAL,
    GrpcMessageType.FIFO,
    GrpcMessageType.DELAY,
    GrpcMessageType.TRANSACTION,
)
_ANY = (MessageType.MIXED, MessageType.UNSPECIFIED)


@dataclass(frozen=True, slots=True)
class GrpcRouting:
    """Handles questions about routes."""

    topics: Topics
    groups: Groups
    uses: Uses
    place: GrpcPlace

    @serves("QueryRoute")
    def route(self, request: GrpcRequest, asked: grpc.QueryRouteRequest) -> None:
        """Answer where a topic's queues are.

        Clients send only after they have a route. So where sending creates a topic, its route is
        told as if it existed, for messages of every type: the first one gives the topic its type.
        """
        name = _named(asked.topic)
        topic = self.topics.if_sent_to(name)
        if self.topics.get(name) is not None:
            self.uses.note_topics([name])
        queues = [
            self._queue(asked.topic, topic, queue_id, _perm(topic, queue_id))
            for queue_id in range(topic.queue_count)
        ]
        request.answer(grpc.QueryRouteResponse(status=ok(), message_queues=queues))

    @serves("QueryAssignment")
    def assign(self, request: GrpcRequest, asked: grpc.QueryAssignmentRequest) -> None:
        """Answer from which queues a consumer receives: any, or each by itself if in order."""
        name = _named(asked.topic)
        group = self.groups.to_read(group_of(asked.group))
        topic = self.topics.if_sent_to(name)
        if not topic.perm & READ:
            raise RequestRefused(
                "topic_not_readable", "the topic's permissions forbid reading", topic=name
            )
        queue_ids = range(topic.read_queue_count) if group.is_ordered else (ANY_QUEUE,)
        assignments = [
            grpc.Assignment(message_queue=self._queue(asked.topic, topic, queue_id, READ))
            for queue_id in queue_ids
        ]
        request.answer(grpc.QueryAssignmentResponse(status=ok(), assignments=assignments))

    def _queue(
        self, resource: grpc.Resource, topic: Topic, queue_id: int, perm: int
    ) -> grpc.MessageQueue:
        return grpc.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=_PERMISSIONS[perm],
            broker=_broker(self.place),
            accept_message_types=_types(topic),
        )


def _broker(place: GrpcPlace) -> grpc.Broker:
    """Return this broker as routes name it."""
    scheme = GrpcScheme.IPv6 if ":" in place.host else GrpcScheme.IPv4
    addresses = [grpc.Address(host=place.host, port=place.port)]
    return grpc.Broker(
        name=place.name, id=0, endpoints=grpc.Endpoints(scheme=scheme, addresses=addresses)
    )


def _named(resource: grpc.Resource) -> str:
    name = topic_of(resource)
    if name in SYSTEM_TOPICS:
        raise RequestRefused("topic_of_system", "use a topic of your own", topic=name)
    return name


def _perm(topic: Topic, queue_id: int) -> int:
    may_read = topic.perm & READ and queue_id < topic.read_queue_count
    may_write = topic.perm & WRITE and queue_id < topic.write_queue_count
    return (READ if may_read else 0) | (WRITE if may_write else 0)


def _types(topic: Topic) -> tuple[GrpcMessageType, ...]:
    if topic.message_type in _ANY or topic.name.startswith(OWN_PREFIXES):
        return _EVERY_TYPE
    return (GrpcMessageType[topic.message_type.value],)
