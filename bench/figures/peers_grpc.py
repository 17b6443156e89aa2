"""Figures of the gRPC port under the official 5.x Java client: ours against Apache's proxy.

Compares durability "fsync" with SYNC_FLUSH, and "os" with ASYNC_FLUSH. Apache's broker has its
proxy in the same process. The load goes to one broker after the other, and the order alternates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.figures import grpc_cost
from bench.figures.common import report
from bench.figures.peers_common import MIB, Plan
from bench.figures.peers_transactions import DURABILITY
from tests.interop.apache import ApacheWithProxy
from tests.interop.escrow import Escrow
from tests.interop.grpc_clients.load import (
    GrpcRun,
    GrpcTarget,
    alternating_pairs,
    grpc_load_peer,
    run_grpc_load,
)
from tests.interop.load import Shape

WANTED_RATES = {"sync": ">= 1.0", "async": ">= 0.8"}
WANTED_THREADS = 64
TRANSACTIONS = 100_000
MEMORY_SHAPE = Shape(threads=64, body_bytes=300)
ROUND_MS = 4_000
ROUNDS_MAX = 60

Pairs = Sequence[tuple[GrpcRun, GrpcRun]]


def run(plan: Plan) -> None:
    """Report every figure of the gRPC port beside Apache's."""
    for one in (sync, async_, tls, memory):
        one(plan)
    grpc_cost.run()


def sync(plan: Plan) -> None:
    """Compare with every half message and decision on disk before it counts."""
    compare("sync", plan.shapes(), plan)


def async_(plan: Plan) -> None:
    """Compare with Apache's broker as most people run it."""
    compare("async", plan.shapes(), plan)


def tls(plan: Plan) -> None:
    """Compare durable transactions of the first shape over TLS."""
    compare("sync", plan.shapes()[:1], plan, has_tls=True)


def compare(flush: str, shapes: Sequence[Shape], plan: Plan, *, has_tls: bool = False) -> None:
    """Measure shapes with one pair of brokers and one driver."""
    with both(flush) as (ours, theirs), grpc_load_peer() as peer:
        for target in (theirs, ours):
            # The virtual machines are cold in the first run.
            run_grpc_load(
                peer, target, shapes[0], warm_up_ms=0, measure_ms=plan.warm_up_ms, tls=has_tls
            )
        for shape in shapes:
            one = partial(
                run_grpc_load,
                peer,
                shape=shape,
                warm_up_ms=plan.warm_up_ms,
                measure_ms=plan.measure_ms,
                tls=has_tls,
            )
            tell(flush, shape, alternating_pairs(one, ours, theirs, plan.runs), has_tls=has_tls)


@contextmanager
def both(flush: str) -> Iterator[tuple[GrpcTarget, GrpcTarget]]:
    """Run both brokers."""
    with (
        ApacheWithProxy(sync_flush=flush == "sync") as theirs,
        Escrow(settings={"store.durability": DURABILITY[flush]}) as ours,
    ):
        yield (
            GrpcTarget(broker=ours, endpoints=ours.grpc_address),
            GrpcTarget(broker=theirs, endpoints=theirs.grpc_endpoint),
        )


def tell(flush: str, shape: Shape, pairs: Pairs, *, has_tls: bool) -> None:
    """Report the figures of one shape."""
    ours, theirs = [mine for mine, _ in pairs], [other for _, other in pairs]
    facts = {
        "flush": flush,
        "threads": shape.threads,
        "body_bytes": shape.body_bytes,
        "tls": has_tls,
    }
    is_wanted = shape.threads == WANTED_THREADS and not has_tls

    def row(name: str, of: Callable[[GrpcRun], float], wanted: str, **details: object) -> None:
        report(
            name,
            statistics.median(of(mine) / max(of(other), 1e-9) for mine, other in pairs),
            "x",
            wanted=wanted if is_wanted else "",
            **facts,
            ours=median(ours, of),
            apache=median(theirs, of),
            **details,
        )

    rate = f"grpc_tx_{flush}_{shape.threads}_ratio"
    row(
        rate,
        lambda one: one.figures.transactions_per_second,
        WANTED_RATES[flush],
        faults=faults(ours),
        apache_faults=faults(theirs),
    )
    row("grpc_send_p99_ratio", lambda one: one.figures.send_ms.p99, "<= 1.0")
    row("grpc_transaction_p99_ratio", lambda one: one.figures.transaction_ms.p99, "")
    row("grpc_receive_ratio", lambda one: one.figures.received_per_second, ">= 0.8")
    row("grpc_cpu_per_tx_ratio", lambda one: one.cpu_us_per_transaction, "")


def median(runs: Sequence[GrpcRun], of: Callable[[GrpcRun], float]) -> float:
    """Median of a value over one broker's runs."""
    return round(statistics.median(of(one) for one in runs), 3)


def faults(runs: Sequence[GrpcRun]) -> dict[str, int]:
    """Counts that must be zero."""
    return {
        "failed": sum(one.figures.failed for one in runs),
        "receives_failed": sum(one.figures.receives_failed for one in runs),
        "doubled": sum(one.figures.doubled for one in runs),
        "not_received": sum(one.figures.not_received for one in runs),
        "checks": sum(one.figures.checks for one in runs),
    }


def memory(_plan: Plan) -> None:
    """Report the anonymous resident memory of our broker alone, with its default settings."""
    with Escrow() as ours, grpc_load_peer() as peer:
        target = GrpcTarget(broker=ours, endpoints=ours.grpc_address)
        count = 0
        for _ in range(ROUNDS_MAX):
            done = run_grpc_load(peer, target, MEMORY_SHAPE, warm_up_ms=0, measure_ms=ROUND_MS)
            count += done.figures.transactions_with_warm_up
            if count >= TRANSACTIONS:
                break
        else:
            raise TimeoutError(f"{count} transactions in {ROUNDS_MAX} rounds")
    report(
        "grpc_memory_mb",
        done.anonymous_bytes / MIB,
        "MiB",
        wanted="<= 120",
        transactions=count,
        faults=faults([done]),
    )
