"""How fast the broker settles by itself, and how much memory that takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from bench.figures.common import report, scratch
from bench.figures.cpu import CpuTimes
from bench.figures.settle_fill import answering, filled, make_ledger, postgres, transaction_id
from escrowmq.client.ledger.checks import CHUNK_ROWS_MAX
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.pipeline_headers import AwaitDueAnswer, AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from tests.fuzz.served import Served
from tests.interop.child import usage

ASKED = 20_000
LOOKED_UP = 100_000
RUNS = 3
WAIT_S_MAX = 300.0
POLL_S = 0.02
MB = 1_000_000
BY_BROKER = "transaction.checked_by=broker"
OFF = "transaction.checked_by=off"


def producers() -> None:
    """Ask one producer, which answers each check with a commit."""
    with scratch() as path:
        runs = [asked_per_s(path / str(run)) for run in range(RUNS)]
    rates = [rate for rate, _ in runs]
    spent = runs[-1][1]
    report("checks_producers_per_s", statistics.median(rates), "1/s", wanted=">= 2000", **spent)


def asked_per_s(path: Path) -> tuple[float, dict[str, object]]:
    """Return the transactions per second of one run, and the CPU seconds by process."""
    with filled(path, ASKED, "", BY_BROKER) as broker:
        cpu = CpuTimes(broker=broker.process.pid)
        with answering(broker):
            rate = settled_per_s(broker, ASKED)
        assert status(broker).parked == 0
        return rate, cpu.spent()


def ledger() -> None:
    """Settle out of a ledger, beside a bare SELECT of the same ids in the same chunks."""
    with scratch() as path, postgres(path) as url:
        for name, step in (("checks_ledger_over_select", 1), ("checks_ledger_half_fenced", 2)):
            ratios, rates, cpus = [], [], []
            for run in range(RUNS):
                uuid = make_ledger(url, LOOKED_UP, step=step)
                selected = select(url)
                place = path / f"{name}-{run}"
                with filled(place, LOOKED_UP, uuid, BY_BROKER, f"ledger.shop.url={url}") as broker:
                    cpu = CpuTimes(broker=broker.process.pid)
                    settled = settled_per_s(broker, LOOKED_UP)
                    cpus.append(cpu.spent())
                rates.append(settled)
                ratios.append(settled / selected)
            report(
                name,
                statistics.median(ratios),
                "x",
                wanted=">= 0.3" if step == 1 else "reported only",
                settled_per_s=round(statistics.median(rates)),
                runs=[round(ratio, 3) for ratio in ratios],
                **cpus[-1],
            )


def select(url: str) -> float:
    """Return how many ids per second a bare SELECT finds."""
    ids = [transaction_id(number) for number in range(LOOKED_UP)]
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        for at in range(0, len(ids), CHUNK_ROWS_MAX):
            connection.execute(
                "SELECT transaction_id, outcome FROM escrowmq_ledger"
                " WHERE transaction_id = ANY(%s)",
                [ids[at : at + CHUNK_ROWS_MAX]],
            ).fetchall()
        return LOOKED_UP / (time.perf_counter() - began)


def settled_per_s(broker: Served, count: int) -> float:
    """Wait until everything is decided; return the rate from the first decision seen.

    Before that, the broker starts, and its store time follows the clock.
    """
    with NativeCalls(broker.address) as calls:

        def left() -> int:
            told = calls.call(NativeCode.AWAIT_DUE, AwaitDueHeader()).header
            assert isinstance(told, AwaitDueAnswer)
            return told.undecided

        until(lambda: left() < count)
        first, began = left(), time.perf_counter()
        until(lambda: not left())
        return first / (time.perf_counter() - began)


def memory() -> None:
    """Compare a broker that looks ledgers up with one whose checks are off."""
    count = 10_000
    with scratch() as path, postgres(path) as url:
        uuid = make_ledger(url, count, step=1)
        with filled(path / "off", count, uuid, OFF) as broker:
            status(broker)
            without = resident(broker)
        with filled(path / "on", count, uuid, BY_BROKER, f"ledger.shop.url={url}") as broker:
            until(lambda: not status(broker).undecided)
            along = resident(broker)
        report(
            "checks_memory_mb",
            (along - without) / MB,
            "MB",
            wanted="<= 80",
            with_mb=round(along / MB, 1),
            without_mb=round(without / MB, 1),
        )


def resident(broker: Served) -> int:
    """Return the resident bytes of a broker and its children."""
    pid = broker.process.pid
    # A child belongs to the thread that started it.
    lists = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
    children = {int(child) for one in lists for child in one.read_text().split()}
    return sum(usage(one).resident_bytes for one in (pid, *children))


def status(broker: Served) -> StatusAnswer:
    """Ask a broker for its status."""
    with NativeCalls(broker.address) as calls:
        told = calls.call(NativeCode.STATUS).header
    assert isinstance(told, StatusAnswer)
    return told


def until(is_so: Callable[[], bool]) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_S)
