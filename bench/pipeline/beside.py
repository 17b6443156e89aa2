"""The broker's latency at 30 % of its top load, with and without the pipeline beside it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures.common import report, scratch
from tests.fuzz.served import Served, served

PART = 0.3
TOP_S = 5
MEASURED_S = 15
ROUNDS = 3
#: Of a thousand transactions: those that the pipeline has to settle.
UNDECIDED = 10
#: The pipeline starts, and works off what has gathered.
WARM_UP_S = 25


def main(_arguments: list[str]) -> None:
    """Print both ratios: medians of rounds, alone and beside in turn."""
    with scratch() as path, served(path, "transaction.check_after_ms=1000") as broker:
        load(broker, TOP_S, 0)
        top = load(broker, TOP_S, 0)["per_s"]
        rate = top * PART
        pairs = []
        for number in range(ROUNDS):
            alone = load(broker, MEASURED_S, rate)
            with pipeline(path / f"pipeline-{number}", broker):
                load(broker, WARM_UP_S, rate)
                pairs.append((alone, load(broker, MEASURED_S, rate)))
        for name in ("p50", "p99"):
            ratios = [along[f"{name}_ms"] / alone[f"{name}_ms"] for alone, along in pairs]
            report(
                f"broker_{name}_ratio",
                statistics.median(ratios),
                "x",
                alone_ms=[round(alone[f"{name}_ms"], 3) for alone, _ in pairs],
                beside_ms=[round(along[f"{name}_ms"], 3) for _, along in pairs],
                top_per_s=round(top),
                rate_per_s=round(rate),
            )


def load(broker: Served, seconds: float, rate: float) -> dict[str, float]:
    """What a load generator saw."""
    command = [sys.executable, "-m", "bench.figures.transaction_load", broker.address]
    command += [str(seconds), str(rate), str(UNDECIDED if rate else 0)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    told: dict[str, float] = json.loads(done.stdout)
    return told


@contextmanager
def pipeline(directory: Path, broker: Served) -> Iterator[None]:
    """While it settles and archives."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "pipeline", "--brokers", broker.address]
    command += ["--data-dir", str(directory)]
    directory.mkdir()
    log = directory / "log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=errors, stderr=errors) as process,  # noqa: S603 - ours
    ):
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8")[-2_000:])
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            time.sleep(1)
