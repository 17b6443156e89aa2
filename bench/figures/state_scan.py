"""Scan, recovery, bytes and memory of each state store with a million undecided transactions."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench.figures.common import HOST, NOW_MS, held, message, report, scratch
from bench.figures.postgres import postgres_url
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.reading.listing import DueBy, WantedHeads, heads_at, list_heads
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.states.migrating import migrate_states
from escrowmq.store.store import Store
from escrowmq.transaction.policy import CheckPolicy, StateStoreName
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import WantedStates
from escrowmq.transaction.states import State

UNDECIDED = 1_000_000
DUE = 10_000
PAGE = 16_384
BODY_BYTES = 100
RUNS = 5
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
            child = get_context("spawn").Process(target=_measure, args=work)
            child.start()
            child.join()
            assert child.exitcode == 0


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
    name: StateStoreName = "sql" if kind == "sqlite" else kind  # type: ignore[assignment]
    policy = replace(CheckPolicy(), state_store=name, state_url=url)
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
    store.close()
    if name != "table":
        store, _ = open_store(OsDisk(path), CONFIG, CheckPolicy(), HOST)
        migrate_states(store, "table", lambda *_: None)
        store.close()


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
