"""Apache RocketMQ with its half messages indexed in RocksDB, against its half and op topics."""

from __future__ import annotations

from bench.figures.common import report
from bench.figures.peers_common import MIB, Plan, faults, median
from tests.interop.harness import ApacheRocketMQ
from tests.interop.load import Comparison, Shape, load_peer, run_load, take_turns
from tests.interop.selfcheck import HALVES_IN_ROCKSDB


def run(plan: Plan) -> None:
    """Measure both in turn, with each half message flushed before its reply."""
    with (
        ApacheRocketMQ(sync_flush=True) as topics,
        ApacheRocketMQ(sync_flush=True, settings=HALVES_IN_ROCKSDB) as rocksdb,
        load_peer() as peer,
    ):
        shapes = plan.shapes()
        for broker in (topics, rocksdb):
            # The virtual machines are cold in the first run.
            run_load(peer, broker, shapes[0], warm_up_ms=0, measure_ms=plan.warm_up_ms)
        for shape in shapes:
            pairs = take_turns(
                peer,
                rocksdb,
                topics,
                shape,
                runs=plan.runs,
                warm_up_ms=plan.warm_up_ms,
                measure_ms=plan.measure_ms,
            )
            tell(shape, pairs)


def tell(shape: Shape, pairs: Comparison) -> None:
    """Report rates, processor time and memory of one shape."""
    rocksdb, topics = pairs.ours, pairs.theirs
    report(
        "apache_rocksdb_over_topics",
        pairs.ratio_of_rates(),
        "x",
        threads=shape.threads,
        body_bytes=shape.body_bytes,
        per_second=median(rocksdb, lambda one: one.figures.transactions_per_second),
        topics_per_second=median(topics, lambda one: one.figures.transactions_per_second),
        send_ms_p99=median(rocksdb, lambda one: one.figures.send_ms.p99),
        topics_send_ms_p99=median(topics, lambda one: one.figures.send_ms.p99),
        cpu_us=median(rocksdb, lambda one: one.cpu_us_per_transaction),
        topics_cpu_us=median(topics, lambda one: one.cpu_us_per_transaction),
        resident_mib=median(rocksdb, lambda one: one.resident_bytes / MIB),
        topics_resident_mib=median(topics, lambda one: one.resident_bytes / MIB),
        **faults(rocksdb),
        topics=faults(topics),
    )
