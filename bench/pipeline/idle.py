"""``escrowmq up``: how soon the pipeline is ready, and how much it costs while it is idle.

    python -m bench.pipeline idle [CACHE_DIR]

CACHE_DIR keeps Spark's start-up files from run to run, and is filled first if it is empty. The
pipeline settles and archives before it is idle, so that the figures include everything that a
service which has worked leaves behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.figures.common import report, scratch
from escrowmq.client.producer.producer import Producer
from escrowmq.model.resolution import Resolution

#: Spark ends workers that were idle for a minute.
SETTLING_DOWN_S = 75.0
MEASURED_S = 30.0
WAIT_S_MAX = 300.0
TRANSACTIONS = 200


def main(arguments: list[str]) -> None:
    """Report three figures."""
    with scratch() as path:
        cache = Path(arguments[0]) if arguments else path / "cache"
        train(cache)
        # The first start fills the page cache; the second, warm one is measured.
        for is_measured in (False, True):
            with up(path / f"data-{is_measured}", cache) as (pid, places):
                if is_measured:
                    ready_s, cpu = float(places["ready_s"]), float(places["ready_cpu_s"])
                    report("pipeline_ready_s", ready_s, "s", cpu_s=round(cpu, 1))
                    measure_idle(pid, places)


def train(cache: Path) -> None:
    """Prepare the files that make Spark start faster, in this directory."""
    command = [sys.executable, "-m", "escrowmq.pipeline.service.start_training", str(cache)]
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=quiet, stderr=quiet)  # noqa: S603 - ours


@contextmanager
def up(data: Path, cache: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Run ``escrowmq up``; give the pipeline's process id and the addresses that it printed."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "up", "--data-dir", str(data)]
    command += ["--port", "0", "--name-port", "0", "--grpc-port", "-1"]
    command += ["--set", "pipeline.http_port=0"]
    command += ["--set", f"pipeline.cache_dir={cache}", "--set", "transaction.check_after_ms=1000"]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 - ours
        try:
            places: dict[str, str] = {}
            assert parent.stdout is not None
            for line in parent.stdout:
                words = [word.split("=", 1) for word in line.split() if "=" in word]
                places |= {f"{line.split()[0]}.{name}": value for name, value in words}
                if line.split()[:2] == ["pipeline", "ready"]:
                    break
            places["ready_s"] = str(time.monotonic() - began_s)
            places["ready_cpu_s"] = str(cpu_s(parent.pid))
            yield int(places["pipeline.pid"]), places
        finally:
            parent.send_signal(signal.SIGINT)
            parent.wait(WAIT_S_MAX)


def measure_idle(pid: int, places: dict[str, str]) -> None:
    """Make the pipeline work, wait until it is idle, and measure it."""
    with Producer(places["broker.name"], group="idle") as producer:
        held = [producer.send_half("idle", b"x" * 300) for _ in range(TRANSACTIONS)]
        until(lambda: status(places)["settle"]["runs"] > 0)
        for one in held:
            producer.end(one, Resolution.COMMIT)
        until(lambda: all(not facts["archive_lag_bytes"] for facts in brokers(places)))
    until(lambda: all(not facts["due"] for facts in brokers(places)))
    rest(SETTLING_DOWN_S)
    runs = [status(places)[kind]["runs"] for kind in ("settle", "archive")]
    before_s, began_s = cpu_s(pid), time.monotonic()
    rest(MEASURED_S)
    percent = (cpu_s(pid) - before_s) / (time.monotonic() - began_s) * 100
    after = [status(places)[kind]["runs"] for kind in ("settle", "archive")]
    report("idle_cpu_percent", percent, "%", runs_meanwhile=after[0] + after[1] - sum(runs))
    by_process = {name_of(one): pss_mb(one) for one in tree(pid)}
    report("idle_pss_mb", sum(by_process.values()), "MB", by_process=by_process)


def status(places: dict[str, str]) -> dict[str, dict[str, int]]:
    """Read the pipeline's status page."""
    with urllib.request.urlopen(f"http://{places['pipeline.http']}/status") as answer:
        told: dict[str, dict[str, int]] = json.load(answer)
        return told


def brokers(places: dict[str, str]) -> list[dict[str, int]]:
    """Read the pipeline's facts about each broker."""
    return list(status(places)["brokers"].values())  # type: ignore[arg-type] # one level deeper


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end_s, "that takes too long"
        rest(0.2)


def rest(seconds: float) -> None:
    """Sleep."""
    select.select([], [], [], seconds)


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of the process and all its descendants."""
    ticks = 0
    for one in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            # Includes children that have ended.
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    """The process's proportional share of the memory it uses, in MB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return round(int(line.split()[1]) / 1_024, 1)
    return 0.0


def name_of(pid: int) -> str:
    """Name of a process: its program, its last argument, and its process id."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().strip("\0").split("\0")
        return f"{Path(words[0]).name} {words[-1]} {pid}"
    return str(pid)
