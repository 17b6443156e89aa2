"""Scan, recovery, bytes and memory of each state store with a million undecided transactions."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.figures.callbacks import Longest, longest_callback
from bench.figures.common import HOST, NOW_MS, commit, held, message, report, scratch
from bench.figures.postgres import postgres_url
from escrowmq.broker.checks.due_pages import found_heads
from escrowmq.broker.checks.rounds import LOOKED_AT_MAX
from escrowmq.broker.write.questions import ask_between
from escrowmq.broker.write.writer import Writer
from escrowmq.cli.run.serving import COLLECT_AFTER
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.reading.listing import DueBy, TransactionPage, WantedHeads, heads_at, list_heads
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.states.migrating import migrate_states
from escrowmq.store.store import Store
from escrowmq.testing import ManualClock
from escrowmq.transaction.commands import End, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy, StateStoreName
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import WantedStates
from escrowmq.transaction.states import State

UNDECIDED = 1_000_000
DUE = 10_000
PAGE = 16_384
BODY_BYTES = 100
RUNS = 5
ENDED = 1_000
CLIENTS = 16
CONFIG = StoreConfig(durability="os")
_PART = 1_000


def run(undecided: int = UNDECIDED) -> None:
    """Fill one store, then open it with each state store."""
    with scratch() as path, postgres_url() as url:
        _fill(path / "store", undecided)
        label = "1m" if undecided == UNDECIDED else str(undecided)
        for kind, at in (("table", ""), ("mapped", ""), ("sqlite", ""), ("sql", url)):
            # A process of its own, so that the memory of one is not that of all.
            work = (path / "store", kind, at, label, undecided)
            for part in (_measure, _die, _recover):
                child = get_context("spawn").Process(target=part, args=work)
                child.start()
                child.join()
                assert child.exitcode == 0
            undecided -= ENDED


def _fill(path: Path, undecided: int) -> None:
    path.mkdir()
    store, _ = open_store(OsDisk(path), CONFIG, CheckPolicy(), HOST)
    body = os.urandom(BODY_BYTES)
    for number in range(undecided):
        one = message(number, body, queue_id=number % 4)
        # The first ones are due an hour before the others.
        now_ms = NOW_MS if number < DUE else NOW_MS + 3_600_000
        held(store, (one,), one.unique_key, now_ms)
        if number % _PART == 0:
            store.sync()
            if store.checkpoint_due:
                store.checkpoint()
    store.sync()
    store.close()


def _measure(path: Path, kind: str, url: str, label: str, undecided: int) -> None:
    policy = _policy(kind, url)
    name = policy.state_store
    before = _resident()
    started = time.perf_counter()
    if name != "table":
        store, _ = open_store(OsDisk(path), CONFIG, CheckPolicy(), HOST)
        opened_s = time.perf_counter() - started
        migrate_states(store, name, lambda *_: None, url)
        store.close()
        report(f"{kind}_migrate_s", time.perf_counter() - started - opened_s, "s")
    started = time.perf_counter()
    store, _ = open_store(OsDisk(path), CONFIG, policy, HOST)
    report(f"{kind}_start_s", time.perf_counter() - started, "s", undecided=undecided)
    report(f"{kind}_resident_bytes", (_resident() - before) / undecided, "B per transaction")
    scans = []
    for _ in range(RUNS):
        started = time.perf_counter()
        found = _scan(store)
        scans.append((time.perf_counter() - started) * 1_000)
        assert found == DUE, found
    report(f"{kind}_scan_{label}_ms", statistics.median(scans), "ms", due=DUE, worst=max(scans))
    report(f"{kind}_bytes", _bytes(path, kind, url) / undecided, "B per transaction")
    turn = asyncio.run(_longest_turn(store))
    turn_ms = turn.took_s * 1e3
    report(f"{kind}_{label}_longest_turn_ms", turn_ms, "ms", callback=turn.callback)
    store.close()


def _die(path: Path, kind: str, url: str, _label: str, undecided: int) -> None:
    """End some transactions, then exit as a killed process does: nothing is closed."""
    store, _ = open_store(OsDisk(path), CONFIG, _policy(kind, url), HOST)
    for half_offset in range(undecided - ENDED, undecided):
        commit(store, half_offset, NOW_MS + 3_600_000)
    store.sync()
    os._exit(0)


def _recover(path: Path, kind: str, url: str, _label: str, undecided: int) -> None:
    """Start after the kill, then go back to the table."""
    started = time.perf_counter()
    store, _ = open_store(OsDisk(path), CONFIG, _policy(kind, url), HOST)
    took_s = time.perf_counter() - started
    report(f"{kind}_recover_s", took_s, "s", undecided=undecided - ENDED, ended=ENDED)
    store.close()
    if kind != "table":
        store, _ = open_store(OsDisk(path), CONFIG, CheckPolicy(), HOST)
        migrate_states(store, "table", lambda *_: None)
        store.close()


def _policy(kind: str, url: str) -> CheckPolicy:
    name: StateStoreName = "sql" if kind == "sqlite" else kind  # type: ignore[assignment]
    return replace(CheckPolicy(), state_store=name, state_url=url)


async def _longest_turn(store: Store) -> Longest:
    """Look for what is due, as the broker's rounds do, while clients send transactions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    writer = Writer(store, ManualClock(NOW_MS + 60_000))
    due_by = DueBy(check_at_ms=NOW_MS + 60_000, stored_at_ms=0)
    is_over = asyncio.Event()

    async def client(number: int) -> None:
        sent = 0
        while not is_over.is_set():
            # Each process has keys of its own: a key that was sent before is no new transaction.
            one = message(os.getpid() * 10**8 + number * 10**6 + sent, bytes(BODY_BYTES))
            sent += 1
            prepare = Prepare(group="orders", transaction_id=one.unique_key, messages=(one,))
            reply = (await writer.submit(prepare)).reply
            assert isinstance(reply, HoldReply)
            end = End(half_offset=reply.half_offset, resolution=Resolution.ROLLBACK, by="bench")
            assert (await writer.submit(end)).refused is None

    with longest_callback() as longest:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(number))
            for _ in range(RUNS):
                assert await _due(store, writer, due_by) == DUE
            is_over.set()
        # Closing is another callback, which does not count.
        await asyncio.sleep(0)
    await writer.close()
    return longest


async def _due(store: Store, writer: Writer, due_by: DueBy) -> int:
    """Return how many transactions are due, found in pages between two batches."""
    found, start = 0, 0
    following: int | None = 0
    while following is not None:
        start = following
        if writer.following is None:
            page = await ask_between(writer, partial(_page, store, start, due_by))
            found, following = found + len(page.heads), page.next_start
        else:
            rows, following = await found_heads(writer.following, start, due_by)
            wanted = WantedHeads((State.PREPARED,), due_by)
            found += len(await ask_between(writer, partial(heads_at, store, rows, wanted)))
    return found


def _page(store: Store, start: int, due_by: DueBy) -> TransactionPage:
    return list_heads(
        store,
        start,
        NEVER,
        (State.PREPARED,),
        limit=PAGE,
        looked_at_max=LOOKED_AT_MAX,
        due_by=due_by,
    )


def _scan(store: Store) -> int:
    """Find what is due, page by page, as a settle round does."""
    due_by = DueBy(check_at_ms=NOW_MS + 60_000, stored_at_ms=0)
    wanted = WantedHeads((State.PREPARED,), due_by)
    found, start = 0, 0
    following: int | None = 0
    while following is not None:
        start = following
        if store.follower is None:
            page = list_heads(store, start, NEVER, wanted.states, limit=PAGE, due_by=due_by)
            found, following = found + len(page.heads), page.next_start
        else:
            asked = WantedStates(first=start, limit=PAGE, check_at_ms=due_by.check_at_ms)
            rows = store.follower.states.scan(asked)
            found += len(heads_at(store, rows.half_offsets, wanted))
            following = rows.next_first
    return found


def _bytes(path: Path, kind: str, url: str) -> int:
    if url:
        import psycopg

        with psycopg.connect(url) as connection:
            asked = "SELECT pg_total_relation_size('escrowmq_state_transactions')"
            return int(connection.execute(asked).fetchall()[0][0])
    folder = {"table": "statetable", "mapped": "mapped"}.get(kind)
    if folder is not None:
        return sum(one.stat().st_size for one in (path / folder).iterdir())
    return sum(one.stat().st_size for one in path.glob("state.db*"))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
