"""The load of an official 5.x Java producer and consumer on any broker, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tests.interop.child import Usage
from tests.interop.grpc_clients.peers import Java5Peer
from tests.interop.load import QUEUES, SLACK_S, Percentiles, Shape
from tests.interop.scenario import fresh
from tests.interop.stock import LARGE

#: The consumer starts when all messages are committed, and receives each of them.
DRAIN_MS = 60_000


class GrpcBroker(Protocol):
    """A broker with a port for 5.x clients."""

    def create_topic(self, topic: str, queues: int = 4, kind: str = "NORMAL") -> None:
        """Create a topic; return when clients that ask are told about it."""
        ...

    def create_group(self, group: str) -> None:
        """Create a consumer group."""
        ...

    def usage(self) -> Usage:
        """Return the usage of the process that handles messages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcTarget:
    """A broker, and where 5.x clients find it."""

    broker: GrpcBroker
    endpoints: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcFigures:
    """The figures of one run.

    ``send_ms`` is the send of a half message, ``transaction_ms`` the send and the commit. The
    consumer starts after the producer has ended.
    """

    transactions_per_second: float
    transactions_with_warm_up: int
    send_ms: Percentiles
    transaction_ms: Percentiles
    received_per_second: float
    failed: int
    receives_failed: int
    checks: int
    doubled: int
    not_received: int
    full: bool
    first_failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcRun:
    """The figures of a run, and the resources that the broker used, including the warm-up."""

    figures: GrpcFigures
    cpu_us_per_transaction: float
    anonymous_bytes: int


def grpc_load_peer() -> Java5Peer:
    """Return a peer with enough memory and the optimizing compiler."""
    peer = Java5Peer()
    peer.memory = LARGE
    return peer


def run_grpc_load(
    peer: Java5Peer,
    target: GrpcTarget,
    shape: Shape,
    *,
    warm_up_ms: int,
    measure_ms: int,
    tls: bool = False,
    receives: bool = True,
) -> GrpcRun:
    """Send transactions from all threads of the shape, then receive and acknowledge each."""
    topic, group = fresh("load"), fresh("receivers")
    target.broker.create_topic(topic, queues=QUEUES, kind="TRANSACTION")
    target.broker.create_group(group)
    before = target.broker.usage()
    answer = peer.lines.call(
        "load",
        {
            "endpoints": target.endpoints,
            "tls": tls,
            "topic": topic,
            "group": group,
            "threads": shape.threads,
            "body_bytes": shape.body_bytes,
            "warm_up_ms": warm_up_ms,
            "measure_ms": measure_ms,
            "drain_ms": DRAIN_MS,
            "receives": receives,
        },
        timeout_s=(warm_up_ms + measure_ms + DRAIN_MS) / 1000 + SLACK_S,
    )
    after = target.broker.usage()
    figures = msgspec.convert(answer, GrpcFigures)
    return GrpcRun(
        figures=figures,
        cpu_us_per_transaction=(
            1000 * (after.cpu_ms - before.cpu_ms) / max(1, figures.transactions_with_warm_up)
        ),
        anonymous_bytes=after.anonymous_bytes,
    )


def alternating_pairs(
    run: Callable[[GrpcTarget], GrpcRun], ours: GrpcTarget, theirs: GrpcTarget, count: int
) -> list[tuple[GrpcRun, GrpcRun]]:
    """Run both brokers in turn, so that a busy machine slows both; our run is first in a pair."""
    pairs = []
    for number in range(count):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        done = {target.endpoints: run(target) for target in order}
        pairs.append((done[ours.endpoints], done[theirs.endpoints]))
    return pairs
