"""Anonymous resident memory after 100,000 transactions: ours against Apache's."""

from __future__ import annotations

from bench.figures.common import report
from bench.figures.peers_common import MIB, Plan
from tests.interop.harness import ApacheRocketMQ, Escrow, JavaPeer
from tests.interop.load import LoadedBroker, Shape, load_peer, run_load

TRANSACTIONS = 100_000
SHAPE = Shape(threads=64, body_bytes=300)
ROUND_MS = 4_000
ROUNDS_MAX = 60


def run(_plan: Plan) -> None:
    """Measure each broker alone and fresh, with its default settings."""
    with load_peer() as peer:
        with ApacheRocketMQ() as theirs:
            apache_bytes, apache_count = filled(peer, theirs)
        with Escrow() as ours:
            our_bytes, our_count = filled(peer, ours)
    report(
        "memory_ratio",
        our_bytes / apache_bytes,
        "x",
        wanted="<= 0.25",
        anonymous_mib=round(our_bytes / MIB, 1),
        apache_anonymous_mib=round(apache_bytes / MIB, 1),
        transactions=our_count,
        apache_transactions=apache_count,
    )


def filled(peer: JavaPeer, broker: LoadedBroker) -> tuple[int, int]:
    """Anonymous bytes after at least `TRANSACTIONS` transactions, and how many there were."""
    count = 0
    for _ in range(ROUNDS_MAX):
        done = run_load(peer, broker, SHAPE, warm_up_ms=0, measure_ms=ROUND_MS)
        count += done.figures.transactions_with_warm_up
        if count >= TRANSACTIONS:
            return done.anonymous_bytes, count
    raise TimeoutError(f"{count} transactions in {ROUNDS_MAX} rounds")
