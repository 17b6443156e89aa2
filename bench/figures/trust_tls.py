"""Transactions per second over TLS, against the same broker and client without it.

One broker takes both (`tls.mode = "optional"`), and makes each transaction durable. Two processes
of the stock client drive it in turn, because the client turns TLS on for a whole process.
"""

from __future__ import annotations

import statistics

from bench.figures.common import report
from bench.figures.peers_common import Plan, faults, median
from tests.interop.harness import Escrow, JavaPeer
from tests.interop.load import Run, load_peer, run_load

SETTINGS = {"store.durability": "fsync", "tls.mode": "optional"}


def run(plan: Plan) -> None:
    """Measure pairs of runs, and report the median of their ratios."""
    (shape,) = plan.shapes()
    with (
        Escrow(settings=SETTINGS) as broker,
        load_peer({"tls.enable": "true"}) as secured,
        load_peer() as plain,
    ):

        def measured(peer: JavaPeer, ms: int) -> Run:
            return run_load(peer, broker, shape, warm_up_ms=plan.warm_up_ms, measure_ms=ms)

        # The virtual machines are cold in the first run.
        for peer in (secured, plain):
            measured(peer, plan.warm_up_ms)
        pairs: list[tuple[Run, Run]] = []
        for number in range(plan.runs):
            if number % 2:
                first = measured(plain, plan.measure_ms)
                pairs.append((measured(secured, plan.measure_ms), first))
            else:
                pairs.append((measured(secured, plan.measure_ms), measured(plain, plan.measure_ms)))
    ours, bare = [one for one, _ in pairs], [one for _, one in pairs]
    report(
        "tls_tx_ratio",
        statistics.median(rate(one) / rate(other) for one, other in pairs),
        "x",
        threads=shape.threads,
        body_bytes=shape.body_bytes,
        per_second=median(ours, rate),
        plain_per_second=median(bare, rate),
        cpu_us=median(ours, lambda one: one.cpu_us_per_transaction),
        plain_cpu_us=median(bare, lambda one: one.cpu_us_per_transaction),
        **faults(ours),
        plain=faults(bare),
    )


def rate(one: Run) -> float:
    """Return a run's transactions per second."""
    return one.figures.transactions_per_second
