"""Makes a broker's parts for RocketMQ's gRPC clients. Imported only by a broker that serves them.

A broker without gRPC has no use for protobuf's 5 MB.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.admitting import GrpcAdmission
from escrowmq.broker.grpc.ending import GrpcEnding
from escrowmq.broker.grpc.orphans import OrphanCommands
from escrowmq.broker.grpc.pulling import GrpcPulling
from escrowmq.broker.grpc.recalling import GrpcRecalling
from escrowmq.broker.grpc.receiving import GrpcReceiving
from escrowmq.broker.grpc.renewing import Renewals
from escrowmq.broker.grpc.routing import GrpcRouting
from escrowmq.broker.grpc.sending import GrpcSending
from escrowmq.broker.grpc.service import grpc_methods
from escrowmq.broker.grpc.telemetry import GrpcTelemetry
from escrowmq.broker.grpc.transaction_ids import TransactionIds
from escrowmq.broker.grpc.waiting import WaitingReceives
from escrowmq.broker.state.client_links import ClientDialect

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.grpc.place import GrpcPlace
    from escrowmq.broker.net.grpc_call import GrpcMethods


def make_grpc(broker: Broker, place: GrpcPlace) -> GrpcMethods:
    """Return the methods for gRPC clients, which find the broker at this place."""
    answering, store, clock = broker.answering, broker.store, broker.clock
    topics, groups, popping = broker.topics, broker.groups, broker.popping
    ids = TransactionIds(broker.key)
    broker.checking.encoders[ClientDialect.GRPC] = OrphanCommands(store, ids).encode
    renewals, waiting = Renewals(popping, clock), WaitingReceives(popping.polls)
    admission = None
    if broker.admission is not None:
        facts = replace(broker.admission.facts, half_of_id=lambda text: ids.read(text).half_offset)
        admission = GrpcAdmission(
            broker.admission.gate, facts, broker.user_of, broker.counts.grpc_rpcs.refused
        )
    telemetry = GrpcTelemetry(
        answering,
        broker.clients,
        clock,
        groups,
        topics,
        broker.heartbeats.tell_changed,
        renewals,
        waiting,
        None if admission is None else admission.check_settings,
    )
    broker.telemetry = telemetry
    broker.grpc_pulling = GrpcPulling(
        groups,
        topics,
        broker.queues,
        broker.offsets,
        popping.places,
        broker.uses,
        telemetry,
        broker.counts,
    )
    broker.polls.add(broker.grpc_pulling.polls)
    handles = broker.recall_handles
    parts = (
        GrpcSending(answering, store, clock, broker.messages, telemetry, ids, handles),
        GrpcRecalling(answering, broker.recalls),
        GrpcEnding(broker.endings, store, ids, broker.checking.budget),
        GrpcRouting(topics, groups, broker.uses, place),
        GrpcReceiving(popping, telemetry, renewals),
        broker.grpc_pulling,
    )
    return grpc_methods(answering, broker.counts.grpc_rpcs, telemetry, parts, admission)
