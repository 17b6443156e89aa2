"""What Apache RocketMQ does on this machine, under the load that ours will get."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.figures.common import report
from tests.interop.harness import ApacheRocketMQ
from tests.interop.load import Run, Shape, load_peer, run_load

RUNS = 3
SHAPES = [
    Shape(threads=threads, body_bytes=body_bytes)
    for body_bytes in (300, 1024)
    for threads in (1, 8, 64)
]
MIB = 1024 * 1024


def run() -> None:
    """Once as it comes, and once with every half message on the disk before it is answered."""
    for sync_flush in (False, True):
        with ApacheRocketMQ(sync_flush=sync_flush) as broker, load_peer() as peer:
            # The first run finds two cold virtual machines.
            run_load(peer, broker, SHAPES[1])
            for shape in SHAPES:
                runs = [run_load(peer, broker, shape) for _ in range(RUNS)]
                tell("sync" if sync_flush else "async", shape, runs)


def tell(flush: str, shape: Shape, runs: Sequence[Run]) -> None:
    """Medians over the runs."""

    def median(of: Callable[[Run], float]) -> float:
        return round(statistics.median(of(one) for one in runs), 3)

    report(
        "apache_transactions",
        median(lambda one: one.figures.transactions_per_second),
        "1/s",
        flush=flush,
        threads=shape.threads,
        body_bytes=shape.body_bytes,
        received_per_second=median(lambda one: one.figures.received_per_second),
        send_ms_p50=median(lambda one: one.figures.send_ms.p50),
        send_ms_p99=median(lambda one: one.figures.send_ms.p99),
        delivery_ms_p50=median(lambda one: one.figures.delivery_ms.p50),
        delivery_ms_p99=median(lambda one: one.figures.delivery_ms.p99),
        cpu_us_per_transaction=median(lambda one: one.cpu_us_per_transaction),
        resident_mib=median(lambda one: one.resident_bytes / MIB),
        anonymous_mib=median(lambda one: one.anonymous_bytes / MIB),
        failed=sum(one.figures.failed for one in runs),
        checks=sum(one.figures.checks for one in runs),
        doubled=sum(one.figures.doubled for one in runs),
        not_received=sum(one.figures.not_received for one in runs),
    )
