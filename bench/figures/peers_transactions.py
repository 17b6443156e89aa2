"""Transactions per second, time until they are visible, and CPU: ours against Apache's.

Compares durability "fsync" with SYNC_FLUSH, and "os" with ASYNC_FLUSH. Both brokers are up. The
load goes to one after the other, and the order alternates.
"""

from __future__ import annotations

from bench.figures.common import report
from bench.figures.peers_common import Plan, faults, median
from tests.interop.harness import ApacheRocketMQ, Escrow
from tests.interop.load import Comparison, Shape, load_peer, run_load, take_turns

DURABILITY = {"sync": "fsync", "async": "os"}
#: Targets at 64 threads.
WANTED = {"sync": ">= 1.0", "async": ">= 0.8"}


def sync(plan: Plan) -> None:
    """Compare with every half message and decision on disk before it counts."""
    compare("sync", plan)


def async_(plan: Plan) -> None:
    """Compare with Apache's broker as most people run it."""
    compare("async", plan)


def compare(flush: str, plan: Plan) -> None:
    """Measure all shapes of a plan with one pair of brokers and one driver."""
    with (
        ApacheRocketMQ(sync_flush=flush == "sync") as theirs,
        Escrow(settings={"store.durability": DURABILITY[flush]}) as ours,
        load_peer() as peer,
    ):
        shapes = plan.shapes()
        for broker in (theirs, ours):
            # The virtual machines are cold in the first run.
            run_load(peer, broker, shapes[0], warm_up_ms=0, measure_ms=plan.warm_up_ms)
        for shape in shapes:
            pairs = take_turns(
                peer,
                ours,
                theirs,
                shape,
                runs=plan.runs,
                warm_up_ms=plan.warm_up_ms,
                measure_ms=plan.measure_ms,
            )
            tell(flush, shape, pairs)


def tell(flush: str, shape: Shape, pairs: Comparison) -> None:
    """Report three figures of one shape."""
    ours, theirs = pairs.ours, pairs.theirs
    facts = {"flush": flush, "threads": shape.threads, "body_bytes": shape.body_bytes}
    report(
        f"tx_{flush}_{shape.threads}_ratio",
        pairs.ratio_of_rates(),
        "x",
        body_bytes=shape.body_bytes,
        wanted=WANTED[flush] if shape.threads == 64 else "",  # noqa: PLR2004 - the name says 64
        per_second=median(ours, lambda one: one.figures.transactions_per_second),
        apache_per_second=median(theirs, lambda one: one.figures.transactions_per_second),
        send_ms_p99=median(ours, lambda one: one.figures.send_ms.p99),
        apache_send_ms_p99=median(theirs, lambda one: one.figures.send_ms.p99),
        **faults(ours),
        apache=faults(theirs),
    )
    report(
        "visible_p50_ratio",
        pairs.ratio_of_deliveries(),
        "x",
        **facts,
        wanted="<= 1.0",
        ms=median(ours, lambda one: one.figures.delivery_ms.p50),
        apache_ms=median(theirs, lambda one: one.figures.delivery_ms.p50),
        ms_p99=median(ours, lambda one: one.figures.delivery_ms.p99),
        apache_ms_p99=median(theirs, lambda one: one.figures.delivery_ms.p99),
    )
    report(
        "cpu_per_tx_ratio",
        pairs.ratio_of_cpu(),
        "x",
        **facts,
        us=median(ours, lambda one: one.cpu_us_per_transaction),
        apache_us=median(theirs, lambda one: one.cpu_us_per_transaction),
    )
