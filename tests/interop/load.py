"""The load of a stock Java producer and consumer on any broker, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
#: Starting and stopping its clients, on top of what it was told to take.
SLACK_S = 60


class LoadedBroker(Broker, Protocol):
    """A broker that can be asked what it takes."""

    def usage(self) -> Usage:
        """Of the process that handles messages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the load looks."""

    threads: int
    body_bytes: int

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.body_bytes} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """In milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run.

    ``send_ms`` is a whole ``sendMessageInTransaction``: half message stored, local transaction, end
    sent.  ``delivery_ms`` is from the return of the local transaction to the consumer's listener.
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
    """The figures, and what the broker took for them, warm-up included."""

    figures: Figures
    cpu_us_per_transaction: float
    resident_bytes: int
    anonymous_bytes: int


def load_peer() -> JavaPeer:
    """A peer with the memory and the compiler for it."""
    return JavaPeer(memory=LARGE)


def run_load(
    peer: JavaPeer,
    broker: LoadedBroker,
    shape: Shape,
    *,
    warm_up_ms: int = WARM_UP_MS,
    measure_ms: int = MEASURE_MS,
) -> Run:
    """Transactions from so many threads, each message consumed in the same process."""
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
    """Runs of two brokers that took turns, and medians of their ratios, pair by pair."""

    ours: Sequence[Run]
    theirs: Sequence[Run]

    def ratio_of_rates(self) -> float:
        return statistics.median(
            mine.figures.transactions_per_second / other.figures.transactions_per_second
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )

    def ratio_of_deliveries(self) -> float:
        """Of the medians; below one is faster."""
        return statistics.median(
            mine.figures.delivery_ms.p50 / other.figures.delivery_ms.p50
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )

    def ratio_of_cpu(self) -> float:
        """Per transaction, of the broker's process."""
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
    """One driver for both, who goes first changes, so that a busy machine slows both."""
    found: dict[bool, list[Run]] = {True: [], False: []}
    for run in range(runs):
        for is_ours in (True, False) if run % 2 else (False, True):
            broker = ours if is_ours else theirs
            done = run_load(peer, broker, shape, warm_up_ms=warm_up_ms, measure_ms=measure_ms)
            found[is_ours].append(done)
    return Comparison(ours=found[True], theirs=found[False])
