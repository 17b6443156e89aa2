"""The methods of RocketMQ's messaging service, built from the parts of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.access.common_needs import check_table
from escrowmq.broker.access.needs_grpc import GRPC_NEEDS
from escrowmq.broker.grpc.requests import GrpcMethod, GrpcRequest, ServedMethod, served_by
from escrowmq.broker.net.grpc_call import GrpcMethods, Unary
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.grpc.definitions import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from escrowmq.broker.grpc.admitting import GrpcAdmission
    from escrowmq.broker.grpc.requests import Handler
    from escrowmq.broker.grpc.telemetry import GrpcTelemetry
    from escrowmq.broker.net.answering import Answering
    from escrowmq.broker.state.counting import Rpcs

#: All methods except Telemetry. The place of a method is its number in the counters, from 1.
METHODS = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "ReceiveMessage",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "EndTransaction",
    "NotifyClientTermination",
    "ChangeInvisibleDuration",
    "RecallMessage",
    "SyncLiteSubscription",
)
STREAMED = ("ReceiveMessage", "PullMessage")


def grpc_methods(
    answering: Answering,
    rpcs: Rpcs,
    telemetry: GrpcTelemetry,
    parts: Iterable[object],
    admission: GrpcAdmission | None = None,
) -> GrpcMethods:
    """Return the methods that a door serves, by path."""
    check_table((*METHODS, "Telemetry"), GRPC_NEEDS)
    handlers: dict[str, Handler] = {}
    for part in (telemetry, *parts):
        handlers.update(served_by(part))
    rpcs.names = dict(enumerate(METHODS, 1))
    rpcs.codes = rpcs.names
    check = None if admission is None else admission.check
    unary: Mapping[bytes, Unary] = {
        path_of(name): ServedMethod(
            answering, rpcs, _method(name, number), handlers.get(name, _refuse), check
        ).serve
        for number, name in enumerate(METHODS, 1)
    }
    return GrpcMethods(
        unary=unary,
        streams={path_of("Telemetry"): telemetry.open},
        admit=None if admission is None else admission.admit,
        gate=None if admission is None else admission.gate,
    )


def _method(name: str, number: int) -> GrpcMethod:
    response = getattr(messages, f"{name}Response")
    # Requests of unsupported methods are not defined here. Nothing reads their fields, so the class
    # of the answer decodes them.
    request = getattr(messages, f"{name}Request", response)
    return GrpcMethod(name, number, request, response, name in STREAMED)


def _refuse(request: GrpcRequest, asked: object) -> None:
    del request, asked
    raise RequestRefused("method_unsupported", "this broker has no lite topics")
