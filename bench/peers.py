"""The same stock Java producer and consumer on our broker and on Apache's, in turn.

    make bench NAME=peers [ARGS="sync async memory --threads 64 --body-bytes 300 --runs 1"]

Needs a JDK and Maven; the first run builds the peers. Prints one JSON object per figure.
``--quick`` is one short run of 64 threads and 300 bytes, to see that everything works; ``apache``
measures Apache's broker alone.
"""

from __future__ import annotations

import argparse

from bench.figures import peers_apache, peers_memory, peers_transactions
from bench.figures.peers_common import BODIES, RUNS, SECONDS, THREADS, Plan

FIGURES = {
    "sync": peers_transactions.sync,
    "async": peers_transactions.async_,
    "memory": peers_memory.run,
    "apache": peers_apache.run,
}
DEFAULT = ("sync", "async", "memory")


def parsed() -> tuple[list[str], Plan]:
    """Parse the names of the figures and the plan."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], metavar="|".join(FIGURES))
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parser.add_argument("--body-bytes", type=int, nargs="+", default=BODIES)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each broker, per shape")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that one run measures")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    plan = Plan(
        threads=given.threads,
        body_bytes=given.body_bytes,
        runs=given.runs,
        measure_ms=int(given.seconds * 1000),
    )
    if given.quick:
        plan = Plan(threads=[64], body_bytes=[300], runs=1, measure_ms=4_000)
    return given.figures or list(DEFAULT), plan


if __name__ == "__main__":
    chosen, plan = parsed()
    for name in chosen:
        FIGURES[name](plan)
