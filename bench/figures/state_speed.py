"""Durable transactions per second with each state store.

A run ends when the state store has followed everything, not only when the clients have answers.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from bench.figures.callbacks import longest_callback
from bench.figures.common import HOST, alternate, held, message, report, scratch
from bench.figures.postgres import postgres_url
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import End, HoldReply, Prepare, Verdicts
from escrowmq.transaction.policy import CheckPolicy

IN_FLIGHT = 256
TRANSACTIONS = 8_000
SINGLE = 64
SINGLE_TRANSACTIONS = 6_000
SPEED_RUNS = 5
BULK = 20_000
BULK_PART = 4_096


def opened_with(path: Path, kind: str, url: str = "") -> Store:
    """Open a store with a state store."""
    path.mkdir(exist_ok=True)
    policy = replace(CheckPolicy(), state_store=kind, state_url=url)  # type: ignore[arg-type]
    return open_store(OsDisk(path), StoreConfig(), policy, HOST)[0]


def speed() -> None:
    """Compare transactions on each state store with those on the table."""
    with scratch() as path, postgres_url() as url:
        numbers = iter(range(10**9))

        def opened(kind: str) -> Store:
            name = "sql" if kind == "sqlite" else kind
            store_path = path / f"store-{next(numbers)}"
            return opened_with(store_path, name, url if kind == "sql" else "")

        def rate(kind: str, in_flight: int, _run: int = 0) -> float:
            return asyncio.run(transactions_per_second(opened(kind), in_flight, TRANSACTIONS))

        for kind, (in_flight, suffix) in product(
            ("mapped", "sqlite", "sql"), ((IN_FLIGHT, ""), (SINGLE, "_64"))
        ):
            rates = (partial(rate, kind, in_flight), partial(rate, "table", in_flight))
            mine, base, ratio = alternate(*rates, runs=SPEED_RUNS)
            named = f"{kind}_over_table{suffix}_tx"
            report(named, ratio, "x", per_second=mine, table_per_second=base, in_flight=in_flight)
        for kind in ("table", "mapped", "sqlite", "sql"):
            with longest_callback() as longest:
                rate(kind, IN_FLIGHT)
            turn_ms = longest.took_s * 1e3
            report(f"{kind}_longest_turn_ms", turn_ms, "ms", callback=longest.callback)


def base(checkout: str) -> None:
    """Compare transactions on the table with those of another version's checkout."""
    with scratch() as path:
        numbers = iter(range(10**9))

        def rate(source: str) -> float:
            data = path / f"store-{next(numbers)}"
            data.mkdir()
            command = [sys.executable, str(Path(__file__).with_name("state_base.py")), str(data)]
            environment = {**os.environ, "PYTHONPATH": source}
            told = subprocess.run(  # noqa: S603 - this program's own
                command, env=environment, capture_output=True, text=True, check=True
            )
            return float(told.stdout)

        mine, theirs, ratio = alternate(lambda _: rate("src"), lambda _: rate(f"{checkout}/src"))
        report("table_tx_ratio", ratio, "x", per_second=mine, base_per_second=theirs)


def sql() -> None:
    """Compare transactions on PostgreSQL with plain commits of one row; then in bulk."""
    with scratch() as path, postgres_url() as url:
        numbers = iter(range(10**9))

        def rate(_run: int) -> float:
            store = opened_with(path / f"store-{next(numbers)}", "sql", url)
            return asyncio.run(transactions_per_second(store, SINGLE, SINGLE_TRANSACTIONS))

        mine, base, ratio = alternate(rate, lambda _: commits_per_second(url), runs=3)
        report("sql_single_64_over_commits", ratio, "x", per_second=mine, commits_per_second=base)
        rates = [bulk(path / f"store-{next(numbers)}", url) for _ in range(3)]
        report("sql_bulk_tx_per_s", max(rates), "1/s", runs=[round(one) for one in rates])


async def transactions_per_second(store: Store, in_flight: int, count: int) -> float:
    """Hold and commit transactions, both acknowledged, in ``in_flight`` tasks at once."""
    writer = Writer(store, SystemClock())
    body = os.urandom(300)
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            one = message(number, body, queue_id=number % 4)
            prepare = Prepare(group="orders", transaction_id=one.unique_key, messages=(one,))
            reply = (await writer.submit(prepare)).reply
            assert isinstance(reply, HoldReply)
            ending = End(half_offset=reply.half_offset, resolution=Resolution.COMMIT, by="bench")
            assert (await writer.submit(ending)).refused is None

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(client())
    following = writer.following
    while following is not None and (  # noqa: ASYNC110 - the follower sets no event
        following.follower.lag_rows or not following.follower.is_equal
    ):
        await asyncio.sleep(0.001)
    took = time.perf_counter() - started
    await writer.close()
    return count / took


def commits_per_second(url: str) -> float:
    """Insert one row per transaction, on 64 connections at once."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plain (id bigserial PRIMARY KEY, n bigint)")
    each = SINGLE_TRANSACTIONS // SINGLE
    ready = threading.Barrier(SINGLE + 1)

    def work() -> None:
        with psycopg.connect(url) as connection:
            ready.wait()
            for number in range(each):
                connection.execute("INSERT INTO plain (n) VALUES (%s)", (number,))
                connection.commit()

    threads = [threading.Thread(target=work) for _ in range(SINGLE)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return SINGLE * each / (time.perf_counter() - started)


def bulk(path: Path, url: str) -> float:
    """Return transactions per second; each gets its row, and the row goes with the verdict."""
    store = opened_with(path, "sql", url)
    clock, body = SystemClock(), os.urandom(300)
    started = time.perf_counter()
    rows = []
    for number in range(BULK):
        one = message(number, body, queue_id=number % 4)
        rows.append(held(store, (one,), one.unique_key, clock.now_ms()))
        if number % BULK_PART == BULK_PART - 1:
            store.sync()
    store.sync()
    follower = store.follower
    assert follower is not None
    assert len(follower.states.snapshot(0, 2**62)) == BULK
    for at in range(0, BULK, BULK_PART):
        part = rows[at : at + BULK_PART]
        said = Verdicts(
            half_offsets=part,
            commits=[True] * len(part),
            states=[0] * len(part),
            checks_sent=[0] * len(part),
            by="bench",
        )
        assert store.execute(said, clock.now_ms()).refused is None
        store.sync()
    took = time.perf_counter() - started
    assert len(follower.states.snapshot(0, 2**62)) == 0
    store.close()
    return BULK / took
