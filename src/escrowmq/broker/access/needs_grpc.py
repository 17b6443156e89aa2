"""The table of gRPC methods: what each of them needs.

A function gets the decoded message and the asker, and returns the needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from escrowmq.access.needs import Needs
from escrowmq.broker.access.common_needs import (
    Asker,
    consumes,
    decides,
    on_topic,
    united,
    uses_topic,
)
from escrowmq.model.errors import EscrowError
from escrowmq.model.users import Action
from escrowmq.protocol.grpc.resource_names import name_of

GrpcNeeds = Callable[[Any, Asker], Needs]
"""The messages' classes have no common type with these fields."""


def _route(asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - a message of the table's method
    return uses_topic(name_of(asked.topic))


def _send(sent: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    topics = dict.fromkeys(name_of(message.topic) for message in sent.messages)
    return united(*(on_topic(Action.PUB, topic) for topic in topics))


def _end(asked: Any, asker: Asker) -> Needs:  # noqa: ANN401 - as above
    try:
        half_offset = asker.facts.half_of_id(asked.transaction_id)
    except EscrowError:
        # The handler refuses an id that this broker did not make.
        return ()
    return decides(asker, half_offset)


def _consumes(asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    return consumes(name_of(asked.group), name_of(asked.topic))


def _consumes_queue(asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    return consumes(name_of(asked.group), name_of(asked.message_queue.topic))


def _queue(asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    return uses_topic(name_of(asked.message_queue.topic))


def _recall(asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    return on_topic(Action.PUB, name_of(asked.topic))


def _open(_asked: Any, _asker: Asker) -> Needs:  # noqa: ANN401 - as above
    # It is about the client itself, whose settings were checked.
    return ()


def settings_needs(settings: Any) -> Needs:  # noqa: ANN401 - as above
    """Return what the settings on a telemetry stream need."""
    if settings.WhichOneof("pub_sub") != "subscription":
        return ()
    subscription = settings.subscription
    topics = [name_of(entry.topic) for entry in subscription.subscriptions]
    return consumes(name_of(subscription.group), *topics)


GRPC_NEEDS: Mapping[str, GrpcNeeds] = {
    "QueryRoute": _route,
    "Heartbeat": _open,
    "SendMessage": _send,
    "QueryAssignment": _consumes,
    "ReceiveMessage": _consumes_queue,
    "AckMessage": _consumes,
    "ForwardMessageToDeadLetterQueue": _consumes,
    "PullMessage": _consumes_queue,
    "UpdateOffset": _consumes_queue,
    "GetOffset": _consumes_queue,
    "QueryOffset": _queue,
    "EndTransaction": _end,
    "NotifyClientTermination": _open,
    "ChangeInvisibleDuration": _consumes,
    "RecallMessage": _recall,
    "SyncLiteSubscription": _open,
    "Telemetry": _open,
}
