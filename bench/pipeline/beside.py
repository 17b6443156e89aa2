"""The broker's latency at 30 % of its top load, with and without the pipeline beside it.

    python -m bench.pipeline beside [CACHE_DIR]

One in 100 transactions is left to the pipeline, which asks its producer. Everything goes to the
lake. CACHE_DIR keeps Spark's start-up files from run to run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures.common import scratch
from bench.figures.loaded_latency import load, report_ratios
from bench.pipeline.idle import status, train, until
from tests.fuzz.served import Served, served

SETTINGS = ("transaction.check_after_ms=1000", "transaction.checked_by=pipeline")
PART = 0.3
TOP_S = 5
MEASURED_S = 15
ROUNDS = 5
#: Transactions of every 1,000 that the pipeline has to settle.
UNDECIDED = 10
#: Time for the pipeline to work off its backlog and for the JVM to warm up.
WARM_UP_S = 40
READY = re.compile(r"^ready .*http=(\S+)$", re.MULTILINE)


def main(arguments: list[str]) -> None:
    """Report both ratios: medians over rounds that alternate between alone and beside."""
    with scratch() as path, served(path, *SETTINGS) as broker:
        cache = Path(arguments[0]) if arguments else path / "cache"
        train(cache)
        load(broker, TOP_S, 0)
        top = load(broker, TOP_S, 0)["per_s"]
        rate = top * PART
        pairs = []
        runs: dict[str, list[int]] = {"settle": [], "archive": []}
        for _ in range(ROUNDS):
            alone = load(broker, MEASURED_S, rate, undecided=UNDECIDED)
            with pipeline(path / "pipeline", broker, cache) as places:
                load(broker, WARM_UP_S, rate, undecided=UNDECIDED)
                before = status(places)
                pairs.append((alone, load(broker, MEASURED_S, rate, undecided=UNDECIDED)))
                after = status(places)
                for kind, counts in runs.items():
                    counts.append(after[kind]["runs"] - before[kind]["runs"])
        report_ratios(
            "broker",
            pairs,
            top_per_s=round(top),
            rate_per_s=round(rate),
            settle_runs=runs["settle"],
            archive_runs=runs["archive"],
        )


@contextmanager
def pipeline(directory: Path, broker: Served, cache: Path) -> Iterator[dict[str, str]]:
    """Run the pipeline, which settles and archives; give the address of its status page."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "pipeline", "--brokers", broker.address]
    command += ["--data-dir", str(directory), "--http-port", "0"]
    command += ["--set", f"pipeline.cache_dir={cache}"]
    directory.mkdir(exist_ok=True)
    log = directory / "log"
    with (
        log.open("w", encoding="utf-8") as errors,
        # A process group of its own, as under `escrowmq up`.
        subprocess.Popen(  # noqa: S603 - ours
            command, stdout=errors, stderr=errors, process_group=0
        ) as process,
    ):
        try:
            until(lambda: READY.search(log.read_text(encoding="utf-8")) is not None)
            found = READY.search(log.read_text(encoding="utf-8"))
            assert found is not None
            yield {"pipeline.http": found[1]}
            if process.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8")[-2_000:])
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            time.sleep(1)
