"""The load of a stock Java producer and consumer on any broker, and its figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tests.interop.child import Usage
from tests.interop.scenario import Broker, fresh
from tests.interop.stock import LARGE, JavaPeer

QUEUES = 8
WARM_UP_MS = 4_000
MEASURE_MS = 10_000
DRAIN_MS = 20_000
#: Time to start and stop the clients, on top of the requested duration.
SLACK_S = 60


class LoadedBroker(Broker, Protocol):
    """A broker that reports its resource use."""

    def usage(self) -> Usage:
        """Return the usage of the process that handles messages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of the load."""

    threads: int
    body_bytes: int

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.body_bytes} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run.

    ``send_ms`` is a whole ``sendMessageInTransaction``: half message stored, local transaction, end
    sent. ``delivery_ms`` is from the return of the local transaction to the consumer's listener.
    """

    transactions_per_second: float
    received_per_second: float
    send_ms: Percentiles
    delivery_ms: Percentiles
    transactions_with_warm_up: int
    failed: int
    checks: int
    doubled: int
    not_received: int
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of a run, and the resources that the broker used, including the warm-up."""

    figures: Figures
    cpu_us_per_transaction: float
    resident_bytes: int
    anonymous_bytes: int


def load_peer(options: Mapping[str, str] | None = None) -> JavaPeer:
    """Return a peer with enough memory and the optimizing compiler."""
    return JavaPeer(memory=LARGE, options=options)


def run_load(
    peer: JavaPeer,
    broker: LoadedBroker,
    shape: Shape,
    *,
    warm_up_ms: int = WARM_UP_MS,
    measure_ms: int = MEASURE_MS,
) -> Run:
    """Send transactions from all threads of the shape; the same process consumes each message."""
    topic, group = fresh("load"), fresh("loaders")
    broker.create_topic(topic, queues=QUEUES)
    before = broker.usage()
    answer = peer.lines.call(
        "load",
        {
            "name_server": broker.name_server,
            "topic": topic,
            "group": group,
            "threads": shape.threads,
            "body_bytes": shape.body_bytes,
            "warm_up_ms": warm_up_ms,
            "measure_ms": measure_ms,
            "drain_ms": DRAIN_MS,
        },
        timeout_s=(warm_up_ms + measure_ms + DRAIN_MS) / 1000 + SLACK_S,
    )
    after = broker.usage()
    figures = msgspec.convert(answer, Figures)
    return Run(
        figures=figures,
        cpu_us_per_transaction=(
            1000 * (after.cpu_ms - before.cpu_ms) / max(1, figures.transactions_with_warm_up)
        ),
        resident_bytes=after.resident_bytes,
        anonymous_bytes=after.anonymous_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of two brokers that took turns, and medians of their pairwise ratios."""

    ours: Sequence[Run]
    theirs: Sequence[Run]

    def ratio_of_rates(self) -> float:
        return statistics.median(
            mine.figures.transactions_per_second / other.figures.transactions_per_second
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )

    def ratio_of_deliveries(self) -> float:
        """Return the ratio of the median delivery times; below 1 means ours is faster."""
        return statistics.median(
            mine.figures.delivery_ms.p50 / other.figures.delivery_ms.p50
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )

    def ratio_of_cpu(self) -> float:
        """Return the ratio of CPU time per transaction in the broker's process."""
        return statistics.median(
            mine.cpu_us_per_transaction / other.cpu_us_per_transaction
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )


def take_turns(
    peer: JavaPeer,
    ours: LoadedBroker,
    theirs: LoadedBroker,
    shape: Shape,
    *,
    runs: int,
    warm_up_ms: int = WARM_UP_MS,
    measure_ms: int = MEASURE_MS,
) -> Comparison:
    """Run both brokers with one driver in alternating order, so that a busy machine slows both."""
    found: dict[bool, list[Run]] = {True: [], False: []}
    for run in range(runs):
        for is_ours in (True, False) if run % 2 else (False, True):
            broker = ours if is_ours else theirs
            done = run_load(peer, broker, shape, warm_up_ms=warm_up_ms, measure_ms=measure_ms)
            found[is_ours].append(done)
    return Comparison(ours=found[True], theirs=found[False])
