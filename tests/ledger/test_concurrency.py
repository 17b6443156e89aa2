"""Concurrent slow transactions, fences and locks, at every isolation level."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.client.ledger.table import LedgerAnswer, LedgerOutcome, SqlLedger
from tests.ledger.shops import (
    COMMITTED,
    GROUP,
    NOW_MS,
    ROLLED_BACK,
    Shop,
    begin,
    driver_hand,
    eventually,
    new_id,
    overdue,
    refused,
    unknown,
)

ISOLATION = [
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]
every_level = pytest.mark.parametrize("level", ISOLATION, ids=lambda level: level.name)
every_begin = pytest.mark.parametrize("sql", ["BEGIN DEFERRED", "BEGIN IMMEDIATE"])


@every_level
def test_a_slow_transaction_that_comes_back_after_the_fence_stays_failed(
    postgres_shop: Shop, level: psycopg.IsolationLevel
) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand:
        hand.db.isolation_level = level
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        hand.execute("SELECT count(*) FROM escrowmq_ledger")
        postgres_shop.fence(key)
        with refused("transaction_fenced", "ledger_row_failed"):
            transaction.insert_row(NOW_MS)
        with refused("transaction_poisoned"):
            hand.db.commit()
    assert postgres_shop.orders() == set()
    assert postgres_shop.settle(overdue(key)) == {key: ROLLED_BACK}


@every_level
def test_a_commit_that_comes_before_the_fence_wins(
    postgres_shop: Shop, level: psycopg.IsolationLevel
) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand:
        hand.db.isolation_level = level
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        transaction.insert_row(NOW_MS)
        assert postgres_shop.settle(overdue(key)) == {key: unknown("locked")}
        transaction.commit()
    assert postgres_shop.settle(overdue(key)) == {key: COMMITTED}
    assert postgres_shop.orders() == {1}


@every_level
def test_a_row_that_waits_for_a_fence_fails_when_the_fence_is_there(
    postgres_shop: Shop, level: psycopg.IsolationLevel
) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand, closing(postgres_shop.connect()) as fencer:
        hand.db.isolation_level = level
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        half_done_fence(fencer, key)
        with ThreadPoolExecutor(1) as pool:
            row = pool.submit(transaction.insert_row, NOW_MS)
            eventually(lambda: is_waiting(postgres_shop))
            fencer.commit()
            with refused("transaction_fenced"):
                row.result()
    assert postgres_shop.orders() == set()
    assert postgres_shop.settle(overdue(key)) == {key: ROLLED_BACK}


def test_a_row_that_waits_for_a_fence_is_written_when_the_fence_is_given_up(
    postgres_shop: Shop,
) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand, closing(postgres_shop.connect()) as fencer:
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        half_done_fence(fencer, key)
        with ThreadPoolExecutor(1) as pool:
            row = pool.submit(transaction.insert_row, NOW_MS)
            eventually(lambda: is_waiting(postgres_shop))
            fencer.rollback()
            row.result()
        transaction.commit()
    assert postgres_shop.orders() == {1}
    assert postgres_shop.settle(overdue(key)) == {key: COMMITTED}


def half_done_fence(fencer: Any, key: str) -> None:
    sql = POSTGRESQL.fence.replace("?", "%s")
    fencer.execute(sql, POSTGRESQL.pack_pairs({key: GROUP}))


def is_waiting(shop: Shop) -> bool:
    found = shop.run("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return bool(found[0][0])


def test_a_fence_that_waits_for_a_row_reads_it_when_it_is_committed(postgres_shop: Shop) -> None:
    """If the fence waits long enough, its own transaction reads what the other one wrote."""
    key = new_id()
    with driver_hand(postgres_shop) as hand, closing(postgres_shop.connect()) as fencer:
        transaction = begin(postgres_shop, hand.db, key)
        transaction.insert_row(NOW_MS)
        with ThreadPoolExecutor(1) as pool:
            fence = pool.submit(half_done_fence, fencer, key)
            eventually(lambda: is_waiting(postgres_shop))
            transaction.commit()
            fence.result()
        sql = POSTGRESQL.read_locked.replace("?", "%s")
        assert fencer.execute(sql, [POSTGRESQL.pack([key])]).fetchall() == [
            (key, GROUP, "committed")
        ]


def test_in_sqlite_a_slow_reader_that_was_fenced_cannot_write_any_more(file_shop: Shop) -> None:
    key = new_id()
    file_shop.run("PRAGMA journal_mode = wal")
    with driver_hand(file_shop, isolation_level=None) as hand:
        hand.execute("BEGIN DEFERRED")
        transaction = begin(file_shop, hand.db, key)
        hand.execute("SELECT * FROM orders").fetchall()
        file_shop.fence(key)
        with refused("ledger_row_failed"):
            transaction.insert_row(NOW_MS)
    assert file_shop.outcomes() == {key: "rolled_back"}


def test_in_sqlite_a_transaction_that_begins_after_its_fence_fails(file_shop: Shop) -> None:
    key = new_id()
    file_shop.fence(key)
    with driver_hand(file_shop, isolation_level=None) as hand:
        hand.execute("BEGIN IMMEDIATE")
        transaction = begin(file_shop, hand.db, key)
        hand.place(1)
        with refused("transaction_fenced"):
            transaction.insert_row(NOW_MS)
    assert (file_shop.orders(), file_shop.outcomes()) == (set(), {key: "rolled_back"})


@pytest.mark.parametrize("journal", ["delete", "wal"])
@every_begin
def test_in_sqlite_a_fence_meets_a_writer_and_waits_for_the_next_round(
    file_shop: Shop, sql: str, journal: str
) -> None:
    key = new_id()
    file_shop.run(f"PRAGMA journal_mode = {journal}")
    with driver_hand(file_shop, isolation_level=None) as hand:
        hand.execute(sql)
        transaction = begin(file_shop, hand.db, key)
        hand.place(1)
        assert file_shop.settle(overdue(key)) == {key: unknown("locked")}
        transaction.insert_row(NOW_MS)
        assert file_shop.settle(overdue(key)) == {key: unknown("locked")}
        transaction.commit()
    assert file_shop.settle(overdue(key)) == {key: COMMITTED}
    assert file_shop.orders() == {1}


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [("committed", COMMITTED), ("rolled_back", ROLLED_BACK), ("odd", unknown("odd_row"))],
)
def test_an_outcome_written_between_look_up_and_fence_counts(
    shop: Shop, outcome: str, answer: LedgerAnswer
) -> None:
    key = new_id()
    opened: list[object] = []

    def connect() -> object:
        if opened:
            # The lookup found nothing; this is the connection for the fence.
            row = f"('{key}', '{GROUP}', '{outcome}', 1)"
            shop.run(f"INSERT INTO escrowmq_ledger VALUES {row}")
        opened.append(shop.connect())
        return opened[-1]

    ledger = SqlLedger(connect)
    found = ledger.resolve([overdue(key)], ledger_uuid=shop.ledger().uuid(), now_ms=NOW_MS)
    assert len(opened) == 2
    assert found == {key: answer}
    assert shop.outcomes() == {key: outcome}


def test_two_fencers_at_once_agree(shop: Shop) -> None:
    keys = [new_id() for _ in range(600)]
    with ThreadPoolExecutor(2) as pool:
        orders = (keys, keys[::-1])
        rounds = [pool.submit(shop.settle, *map(overdue, order)) for order in orders]
        found = [done.result() for done in rounds]
    for answers in found:
        assert set(answers.values()) <= {ROLLED_BACK, unknown("locked")}
    assert set(shop.settle(*map(overdue, keys)).values()) == {ROLLED_BACK}


LEVELS: dict[str, list[Callable[[Any], None]]] = {
    "sqlite": [
        lambda db: db.execute("BEGIN"),
        lambda db: db.execute("BEGIN IMMEDIATE"),
    ],
    "postgresql": [
        lambda db, level=level: setattr(db, "isolation_level", level)  # type: ignore[misc]
        for level in ISOLATION
    ],
}


def test_orders_rows_and_answers_always_agree(shop: Shop) -> None:
    """Writers and fencers race for the same transactions; no two answers contradict each other."""
    seed = random.randrange(1 << 32)
    keys = [new_id() for _ in range(60)]
    answers: list[dict[str, LedgerAnswer]] = []
    acknowledged: set[str] = set()
    remaining = iter(enumerate(keys))
    taking = threading.Lock()
    writers_left = threading.Semaphore(0)

    def write(number: int) -> None:
        rng = random.Random(seed + number)
        for order, key in iter(take, None):
            with closing(shop.connect()) as db:
                rng.choice(LEVELS[shop.kind])(db)
                with suppress(Exception):
                    transaction = begin(shop, db, key)
                    db.execute(f"INSERT INTO orders VALUES ({order})")
                    transaction.insert_row(NOW_MS)
                    transaction.commit()
                    acknowledged.add(key)
        writers_left.release()

    def take() -> tuple[int, str] | None:
        with taking:
            return next(remaining, None)

    def fence() -> None:
        rng = random.Random(seed)
        while not writers_left.acquire(blocking=False):
            answers.append(shop.settle(*(overdue(key) for key in rng.sample(keys, 5))))

    with ThreadPoolExecutor(4) as pool:
        for task in [*(pool.submit(write, number) for number in range(2)), pool.submit(fence)]:
            task.result()
    final = shop.settle(*map(overdue, keys))
    committed = {key for key, answer in final.items() if answer == COMMITTED}
    assert set(final.values()) <= {COMMITTED, ROLLED_BACK}, seed
    assert {keys[order] for order in shop.orders()} == committed, seed
    assert acknowledged <= committed, seed
    for heard in answers:
        for key, answer in heard.items():
            assert answer == final[key] or answer.outcome is LedgerOutcome.UNKNOWN, seed
