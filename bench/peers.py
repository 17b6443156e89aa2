"""The same stock Java producer and consumer on our broker and on Apache's, in turn.

    make bench NAME=peers [ARGS="sync async memory --threads 64 --body-bytes 300 --runs 1"]
    make bench NAME=peers ARGS=grpc

Needs a JDK and Maven; the first run builds the peers. Prints one JSON object per figure.
``--quick`` is one short run of 64 threads and 300 bytes, to see that everything works; ``apache``
measures Apache's broker alone, ``halves`` its two ways to keep half messages; ``grpc`` compares the
ports for 5.x clients, or parts of that with ``grpc-sync``, ``grpc-async``, ``grpc-tls``,
``grpc-memory`` and ``grpc-cost``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.figures import (
    grpc_cost,
    peers_apache,
    peers_grpc,
    peers_halves,
    peers_memory,
    peers_transactions,
)
from bench.figures.peers_common import (
    BODIES,
    GRPC_BODIES,
    GRPC_RUNS,
    GRPC_THREADS,
    RUNS,
    SECONDS,
    THREADS,
    Plan,
)

FIGURES: dict[str, Callable[[Plan], None]] = {
    "sync": peers_transactions.sync,
    "async": peers_transactions.async_,
    "memory": peers_memory.run,
    "apache": peers_apache.run,
    "grpc": peers_grpc.run,
    "grpc-sync": peers_grpc.sync,
    "grpc-async": peers_grpc.async_,
    "grpc-tls": peers_grpc.tls,
    "grpc-memory": peers_grpc.memory,
    "grpc-cost": lambda _: grpc_cost.run(),
    "halves": peers_halves.run,
}
DEFAULT = ("sync", "async", "memory")


def parsed() -> tuple[list[str], Plan]:
    """Parse the names of the figures and the plan."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], metavar="|".join(FIGURES))
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument("--body-bytes", type=int, nargs="+")
    parser.add_argument("--runs", type=int, help="of each broker, per shape")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that one run measures")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    figures = given.figures or list(DEFAULT)
    is_grpc = all(name.startswith("grpc") for name in figures)
    plan = Plan(
        threads=given.threads or (GRPC_THREADS if is_grpc else THREADS),
        body_bytes=given.body_bytes or (GRPC_BODIES if is_grpc else BODIES),
        runs=given.runs or (GRPC_RUNS if is_grpc else RUNS),
        measure_ms=int(given.seconds * 1000),
    )
    if given.quick:
        plan = Plan(threads=[64], body_bytes=[300], runs=1, measure_ms=4_000)
    return figures, plan


if __name__ == "__main__":
    chosen, plan = parsed()
    for name in chosen:
        FIGURES[name](plan)
