"""The cost of the SDK: beside RocketMQ's own Python client, in bulk, and to import."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures.common import alternate, report, scratch
from tests.interop import building
from tests.interop.apache import ApacheWithProxy
from tests.interop.building import PEERS

TOPIC = "order-paid"
BODY_BYTES = 300
IN_FLIGHT = 64
TRANSACTIONS = 5_000
BULK = 1_000
BULK_MESSAGES = 100_000
SINGLE_MESSAGES = 3_000
IMPORTS = 30
SDK = "import escrowmq; escrowmq.Producer; escrowmq.Consumer"
RUNS = 5
LOAD_S_MAX = 600
MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one load."""

    transactions: int
    failed: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per transaction."""
        return self.cpu_s / self.transactions * MICROSECONDS

    @property
    def per_s(self) -> float:
        """Transactions per second."""
        return self.transactions / self.wall_s


def run_load(words: Sequence[str | Path]) -> Cost:
    """Run a client in a process of its own."""
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=LOAD_S_MAX, check=True)  # noqa: S603 - ours
    cost = Cost(**json.loads(done.stdout.splitlines()[-1]))
    assert not cost.failed, f"{cost.failed} failed"
    return cost


def ours(what: str, address: str, count: int, in_flight: int) -> Cost:
    """Run our client."""
    numbers = [str(count), str(in_flight), str(BODY_BYTES)]
    program = [sys.executable, "-m", "bench.figures.sdk_load"]
    return run_load([*program, what, address, TOPIC, *numbers])


def python5(endpoint: str) -> Cost:
    """Run RocketMQ's own client for Python."""
    python = building.python5_peer() / "bin" / "python"
    numbers = [str(TRANSACTIONS), str(IN_FLIGHT), str(BODY_BYTES)]
    return run_load([python, PEERS / "python5" / "load.py", endpoint, TOPIC, *numbers])


def client_cpu() -> None:
    """Compare transactional send and commit by both clients on the same Apache RocketMQ."""
    building.python5_peer()
    with ApacheWithProxy(check_after_ms=60_000) as broker:
        broker.create_topic(TOPIC, queues=8, kind="TRANSACTION")
        costs: dict[str, list[Cost]] = {"ours": [], "python5": []}

        def one(name: str) -> float:
            cost = (
                ours("transactions", broker.name_server, TRANSACTIONS, IN_FLIGHT)
                if name == "ours"
                else python5(broker.grpc_endpoint)
            )
            costs[name].append(cost)
            return cost.cpu_us

        mine, theirs, ratio = alternate(lambda _: one("ours"), lambda _: one("python5"), RUNS)
    report(
        "client_cpu_over_python5",
        ratio,
        "ratio",
        ours_cpu_us=round(mine, 1),
        python5_cpu_us=round(theirs, 1),
        ours_per_s=round(statistics.median(cost.per_s for cost in costs["ours"])),
        python5_per_s=round(statistics.median(cost.per_s for cost in costs["python5"])),
        in_flight=IN_FLIGHT,
        body_bytes=BODY_BYTES,
        runs=RUNS,
    )


@contextmanager
def our_broker(data: Path) -> Iterator[str]:
    """Run a broker in a process of its own; give its name server's address."""
    words = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", str(data)]
    settings = ["store.durability=os", "broker.port=0", "broker.name_port=0", "broker.grpc_port=-1"]
    for setting in settings:
        words += ["--set", setting]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    try:
        assert process.stdout is not None
        yield _address_in(process.stdout)
    finally:
        process.terminate()
        process.wait()


def _address_in(lines: Iterable[str]) -> str:
    """Find the name server's address in the broker's output."""
    for line in lines:
        if line.startswith("ready "):
            return dict(word.split("=") for word in line.split()[1:])["name"]
    raise RuntimeError("the broker did not start")


def bulk() -> None:
    """Compare ordinary messages to our broker: 1,000 in one call, over one at a time."""
    with scratch() as folder, our_broker(folder / "data") as address:
        many, one, ratio = alternate(
            lambda _: ours("bulk", address, BULK_MESSAGES, BULK).per_s,
            lambda _: ours("single", address, SINGLE_MESSAGES, 1).per_s,
            RUNS,
        )
    report(
        "bulk_over_single",
        ratio,
        "ratio",
        bulk_per_s=round(many),
        single_per_s=round(one),
        bulk=BULK,
        body_bytes=BODY_BYTES,
        durability="os",
        runs=RUNS,
    )


def import_ms() -> None:
    """Report how much longer a fresh Python takes to start if it imports and touches the SDK.

    Takes the fastest of many starts, because other work on the machine can only slow a start down.
    """

    def starts(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=os.environ, check=True)  # noqa: S603 - ours
        return (time.perf_counter() - began) * 1_000

    times: dict[str, list[float]] = {"pass": [], SDK: []}
    for _ in range(IMPORTS):
        for code, taken in times.items():
            taken.append(starts(code))
    report(
        "import_ms",
        min(times[SDK]) - min(times["pass"]),
        "ms",
        with_sdk_ms=round(min(times[SDK]), 1),
        bare_python_ms=round(min(times["pass"]), 1),
        runs=IMPORTS,
    )
