"""The table of RocketMQ's remoting requests: what each of them needs.

A function gets the request's frame and the asker, and returns the needs. It decodes fields and body
as the handler does, so both see the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from escrowmq.access.needs import Needs
from escrowmq.broker.access.common_needs import (
    Asker,
    consumes,
    decides,
    need,
    on_cluster,
    on_group,
    on_topic,
    refuse_other_client,
    united,
    uses_group,
    uses_topic,
)
from escrowmq.model.errors import EscrowError
from escrowmq.model.users import Action, ResourceKind
from escrowmq.protocol.message.ids import parse_offset_message_id
from escrowmq.protocol.remoting import admin_headers as admin
from escrowmq.protocol.remoting import client_bodies, cluster_bodies
from escrowmq.protocol.remoting import consumer_headers as consumer
from escrowmq.protocol.remoting import pop_headers as pop
from escrowmq.protocol.remoting.bodies import LockRequest, read_body
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import Header, read_header
from escrowmq.protocol.remoting.send_headers import (
    EndTransactionHeader,
    RecallHeader,
    ResumeCheckHeader,
    read_send_header,
)

if TYPE_CHECKING:
    from escrowmq.protocol.remoting.frames import RemotingFrame

RemotingNeeds = Callable[["RemotingFrame", Asker], Needs]
HeaderT = TypeVar("HeaderT", bound=Header)


def _by(kind: type[HeaderT], needs: Callable[[HeaderT], Needs]) -> RemotingNeeds:
    """Return a function whose needs follow from the header."""
    return lambda frame, _asker: needs(read_header(kind, frame.ext))


def _always(needs: Needs) -> RemotingNeeds:
    return lambda _frame, _asker: needs


def _send(frame: RemotingFrame, asker: Asker) -> Needs:
    del asker
    return on_topic(Action.PUB, read_send_header(frame.code, frame.ext).topic)


def _end(frame: RemotingFrame, asker: Asker) -> Needs:
    return decides(asker, read_header(EndTransactionHeader, frame.ext).half_offset)


def _resume(frame: RemotingFrame, asker: Asker) -> Needs:
    header = read_header(ResumeCheckHeader, frame.ext)
    half_offset = asker.facts.transaction_at(header.offset_message_id)
    origin = None if half_offset is None else asker.facts.origin_of(half_offset)
    return on_group(Action.SETTLE, "" if origin is None else origin.group)


def _send_back(frame: RemotingFrame, asker: Asker) -> Needs:
    header = read_header(consumer.SendBackHeader, frame.ext)
    # The topic of the message counts, not the one in the header: the group gets its content.
    topic = asker.facts.topic_at(header.log_offset)
    if not topic:
        return on_group(Action.SUB, header.consumer_group)
    return consumes(header.consumer_group, topic)


def _view(frame: RemotingFrame, asker: Asker) -> Needs:
    return _message_at(read_header(admin.ViewMessageHeader, frame.ext).log_offset, asker)


def _message_at(log_offset: int, asker: Asker) -> Needs:
    topic = asker.facts.topic_at(log_offset)
    if topic:
        return on_topic(Action.SUB, topic)
    # It is a half message, or there is none, and nobody learns which.
    return on_cluster(Action.AUDIT)


def _heartbeat(frame: RemotingFrame, asker: Asker) -> Needs:
    said = read_body(client_bodies.Heartbeat, frame.body)
    asker = Asker(asker.known, asker.facts, asker.link, said.client_id)
    return united(
        *(
            consumes(one.group, *(subscription.topic for subscription in one.subscriptions))
            for one in said.consumers
        ),
        *(refuse_other_client(asker, one.group) for one in said.producers),
    )


def _unregister(frame: RemotingFrame, asker: Asker) -> Needs:
    header = read_header(consumer.UnregisterHeader, frame.ext)
    asker = Asker(asker.known, asker.facts, asker.link, header.client_id)
    leaves = on_group(Action.SUB, header.consumer_group) if header.consumer_group else ()
    return united(leaves, refuse_other_client(asker, header.producer_group))


def _check_config(frame: RemotingFrame, _asker: Asker) -> Needs:
    if not frame.body:
        return ()
    asked = read_body(client_bodies.CheckClientRequest, frame.body)
    return consumes(asked.group, asked.subscription.topic)


def _locks(frame: RemotingFrame, _asker: Asker) -> Needs:
    asked = read_body(LockRequest, frame.body)
    return consumes(asked.consumer_group, *(queue.topic for queue in asked.queues))


def _acks(frame: RemotingFrame, _asker: Asker) -> Needs:
    acks = read_body(pop.BatchAcks, frame.body).acks
    return united(*(consumes(one.group, one.topic) for one in acks))


def _assignment(frame: RemotingFrame, _asker: Asker) -> Needs:
    asked = read_body(pop.AssignmentRequest, frame.body)
    return consumes(asked.consumer_group, asked.topic)


def _request_mode(frame: RemotingFrame, _asker: Asker) -> Needs:
    return on_group(Action.UPDATE, read_body(pop.RequestModeBody, frame.body).consumer_group)


def _consume_directly(frame: RemotingFrame, asker: Asker) -> Needs:
    header = read_header(admin.ConsumeDirectlyHeader, frame.ext)
    try:
        _, log_offset = parse_offset_message_id(header.offset_message_id)
    except EscrowError:
        log_offset = -1
    updates = on_group(Action.UPDATE, header.consumer_group)
    # A group is given only what it may read.
    topic = asker.facts.topic_at(log_offset)
    return united(updates, on_topic(Action.SUB, topic)) if topic else updates


def _put_topic(frame: RemotingFrame, asker: Asker) -> Needs:
    topic = read_header(admin.CreateTopicHeader, frame.ext).topic
    return on_topic(Action.UPDATE if asker.facts.has_topic(topic) else Action.CREATE, topic)


def _put_group(frame: RemotingFrame, asker: Asker) -> Needs:
    group = read_body(cluster_bodies.GroupConfig, frame.body).name
    return on_group(Action.UPDATE if asker.facts.has_group(group) else Action.CREATE, group)


def _consumed(header: consumer.ConsumedQueueHeader) -> Needs:
    return consumes(header.consumer_group, header.topic)


def _asked_offset(header: consumer.ConsumedQueueHeader) -> Needs:
    return united(uses_group(header.consumer_group), uses_topic(header.topic))


def _of_group(header: Any) -> Needs:  # noqa: ANN401 - a header with this field
    return on_group(Action.GET, header.consumer_group)


def _of_group_and_topic(header: admin.GroupTopicHeader) -> Needs:
    return united(_of_group(header), on_topic(Action.GET, header.topic))


def _stats(header: admin.ConsumeStatsHeader) -> Needs:
    return uses_group(header.consumer_group)


def _of_topic(action: Action) -> Callable[[admin.TopicHeader], Needs]:
    return lambda header: on_topic(action, header.topic)


_OF_QUEUE: RemotingNeeds = _by(consumer.QueueHeader, lambda header: uses_topic(header.topic))
_TOPICS = _always(need(Action.LIST, ResourceKind.TOPIC))
#: Clients ask these when they start, and tools before anything else.
_OPEN = _always(())

CODE = RequestCode
REMOTING_NEEDS: Mapping[int, RemotingNeeds] = {
    # Producers.
    CODE.SEND_MESSAGE: _send,
    CODE.SEND_MESSAGE_V2: _send,
    CODE.SEND_BATCH_MESSAGE: _send,
    CODE.END_TRANSACTION: _end,
    CODE.RECALL_MESSAGE: _by(RecallHeader, lambda header: on_topic(Action.PUB, header.topic)),
    # Consumers.
    CODE.PULL_MESSAGE: _by(consumer.PullHeader, _consumed),
    CODE.LITE_PULL_MESSAGE: _by(consumer.PullHeader, _consumed),
    CODE.QUERY_CONSUMER_OFFSET: _by(consumer.QueryOffsetHeader, _asked_offset),
    CODE.UPDATE_CONSUMER_OFFSET: _by(consumer.UpdateOffsetHeader, _consumed),
    CODE.SEARCH_OFFSET_BY_TIMESTAMP: _by(
        consumer.SearchOffsetHeader, lambda header: uses_topic(header.topic)
    ),
    CODE.GET_MAX_OFFSET: _OF_QUEUE,
    CODE.GET_MIN_OFFSET: _OF_QUEUE,
    CODE.GET_EARLIEST_MSG_STORETIME: _OF_QUEUE,
    CODE.CONSUMER_SEND_MSG_BACK: _send_back,
    CODE.GET_CONSUMER_LIST_BY_GROUP: _by(
        consumer.ConsumerGroupHeader, lambda header: uses_group(header.consumer_group)
    ),
    CODE.LOCK_BATCH_MQ: _locks,
    CODE.UNLOCK_BATCH_MQ: _locks,
    CODE.QUERY_ASSIGNMENT: _assignment,
    CODE.SET_MESSAGE_REQUEST_MODE: _request_mode,
    CODE.POP_MESSAGE: _by(pop.PopHeader, _consumed),
    CODE.ACK_MESSAGE: _by(pop.AckHeader, _consumed),
    CODE.CHANGE_MESSAGE_INVISIBLETIME: _by(pop.ChangeInvisibleHeader, _consumed),
    CODE.NOTIFICATION: _by(pop.NotificationHeader, _consumed),
    CODE.POLLING_INFO: _by(consumer.ConsumedQueueHeader, _asked_offset),
    CODE.BATCH_ACK_MESSAGE: _acks,
    # Every client.
    CODE.HEART_BEAT: _heartbeat,
    CODE.UNREGISTER_CLIENT: _unregister,
    CODE.CHECK_CLIENT_CONFIG: _check_config,
    CODE.GET_ROUTEINFO_BY_TOPIC: _by(admin.RouteHeader, lambda header: uses_topic(header.topic)),
    CODE.GET_BROKER_CLUSTER_INFO: _OPEN,
    CODE.GET_BROKER_CONFIG: _OPEN,
    # Tools: messages.
    CODE.QUERY_MESSAGE: _by(admin.QueryMessageHeader, _of_topic(Action.SUB)),
    CODE.VIEW_MESSAGE_BY_ID: _view,
    CODE.RESUME_CHECK_HALF_MESSAGE: _resume,
    # Tools: topics.
    CODE.UPDATE_AND_CREATE_TOPIC: _put_topic,
    CODE.GET_ALL_TOPIC_CONFIG: _TOPICS,
    CODE.GET_TOPIC_CONFIG: _by(admin.TopicHeader, _of_topic(Action.GET)),
    CODE.GET_TOPIC_STATS_INFO: _by(admin.TopicHeader, _of_topic(Action.GET)),
    CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _TOPICS,
    CODE.DELETE_TOPIC_IN_BROKER: _by(admin.TopicHeader, _of_topic(Action.DELETE)),
    CODE.DELETE_TOPIC_IN_NAMESRV: _by(admin.DeleteRouteHeader, _of_topic(Action.DELETE)),
    CODE.GET_TOPICS_BY_CLUSTER: _TOPICS,
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS: _TOPICS,
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _TOPICS,
    # Tools: groups.
    CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put_group,
    CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _always(need(Action.LIST, ResourceKind.GROUP)),
    CODE.GET_SUBSCRIPTIONGROUP_CONFIG: _by(
        admin.GroupHeader, lambda header: uses_group(header.consumer_group)
    ),
    CODE.DELETE_SUBSCRIPTIONGROUP: _by(
        admin.DeleteGroupHeader, lambda header: on_group(Action.DELETE, header.consumer_group)
    ),
    CODE.GET_CONSUMER_CONNECTION_LIST: _by(consumer.ConsumerGroupHeader, _of_group),
    CODE.GET_PRODUCER_CONNECTION_LIST: _by(
        admin.ProducerGroupHeader, lambda header: on_group(Action.GET, header.producer_group)
    ),
    CODE.GET_CONSUME_STATS: _by(admin.ConsumeStatsHeader, _stats),
    CODE.INVOKE_BROKER_TO_RESET_OFFSET: _by(
        admin.ResetOffsetHeader, lambda header: on_group(Action.UPDATE, header.consumer_group)
    ),
    CODE.QUERY_TOPIC_CONSUME_BY_WHO: _by(admin.TopicHeader, _of_topic(Action.GET)),
    CODE.QUERY_CONSUME_TIME_SPAN: _by(admin.GroupTopicHeader, _of_group_and_topic),
    CODE.QUERY_TOPICS_BY_CONSUMER: _by(admin.GroupHeader, _of_group),
    CODE.QUERY_SUBSCRIPTION_BY_CONSUMER: _by(admin.GroupTopicHeader, _of_group_and_topic),
    CODE.GET_CONSUMER_RUNNING_INFO: _by(admin.RunningInfoHeader, _of_group),
    CODE.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    # Tools: broker and cluster.
    CODE.GET_BROKER_RUNTIME_INFO: _always(on_cluster(Action.GET)),
    CODE.PUT_KV_CONFIG: _always(on_cluster(Action.UPDATE)),
    CODE.GET_KV_CONFIG: _always(on_cluster(Action.GET)),
    CODE.DELETE_KV_CONFIG: _always(on_cluster(Action.DELETE)),
}
