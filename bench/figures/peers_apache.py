"""Figures of Apache RocketMQ on this machine, under the load that our broker gets."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures.common import report
from bench.figures.peers_common import MIB, Plan, faults, median
from tests.interop.harness import ApacheRocketMQ
from tests.interop.load import Run, Shape, load_peer, run_load


def run(plan: Plan) -> None:
    """Measure it with its default settings, and with each half message flushed before its reply."""
    timing = {"warm_up_ms": plan.warm_up_ms, "measure_ms": plan.measure_ms}
    for sync_flush in (False, True):
        with ApacheRocketMQ(sync_flush=sync_flush) as broker, load_peer() as peer:
            # Both virtual machines are cold in the first run.
            run_load(peer, broker, plan.shapes()[0], **timing)
            for shape in plan.shapes():
                runs = [run_load(peer, broker, shape, **timing) for _ in range(plan.runs)]
                tell("sync" if sync_flush else "async", shape, runs)


def tell(flush: str, shape: Shape, runs: Sequence[Run]) -> None:
    """Report medians over the runs."""
    report(
        "apache_transactions",
        median(runs, lambda one: one.figures.transactions_per_second),
        "1/s",
        flush=flush,
        threads=shape.threads,
        body_bytes=shape.body_bytes,
        received_per_second=median(runs, lambda one: one.figures.received_per_second),
        send_ms_p50=median(runs, lambda one: one.figures.send_ms.p50),
        send_ms_p99=median(runs, lambda one: one.figures.send_ms.p99),
        delivery_ms_p50=median(runs, lambda one: one.figures.delivery_ms.p50),
        delivery_ms_p99=median(runs, lambda one: one.figures.delivery_ms.p99),
        cpu_us_per_transaction=median(runs, lambda one: one.cpu_us_per_transaction),
        resident_mib=median(runs, lambda one: one.resident_bytes / MIB),
        anonymous_mib=median(runs, lambda one: one.anonymous_bytes / MIB),
        checks=sum(one.figures.checks for one in runs),
        **faults(runs),
    )
