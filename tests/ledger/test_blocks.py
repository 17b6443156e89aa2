"""The row in the user's own transaction, where the block commits: every hand, both databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.ledger.shops import (
    GROUP,
    HANDS,
    NOW_MS,
    Hand,
    Order,
    Shop,
    begin,
    connection_hand,
    driver_hand,
    new_id,
    refused,
    session_hand,
)

Opened = Callable[..., AbstractContextManager[Hand]]

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)


@every_hand
def test_order_and_row_are_committed_together(shop: Shop, opened: Opened) -> None:
    key = new_id()
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, key)
        assert not transaction.is_commit_owned_by_caller
        hand.place(1)
        transaction.insert_row(NOW_MS)
        assert shop.orders() == set()
        transaction.commit()
    assert shop.orders() == {1}
    assert shop.run("SELECT * FROM escrowmq_ledger") == [(key, GROUP, "committed", NOW_MS)]


@every_hand
def test_order_and_row_are_rolled_back_together(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        transaction.rollback()
        hand.commits[next(iter(hand.commits))]()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_hand
def test_one_connection_takes_one_block_after_the_other(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        for order in range(3):
            transaction = begin(shop, hand.db, new_id())
            hand.place(order)
            if order == 1:
                transaction.rollback()
            else:
                transaction.insert_row(NOW_MS)
                transaction.commit()
        # The user can use the connection again.
        hand.place(7)
        next(iter(hand.commits.values()))()
    assert shop.orders() == {0, 2, 7}
    assert list(shop.outcomes().values()) == ["committed"] * 2


@every_hand
def test_work_done_before_the_block_is_part_of_it(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        hand.place(1)
        transaction = begin(shop, hand.db, new_id())
        hand.place(2)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert shop.orders() == {1, 2}


@every_hand
def test_a_block_that_sends_nothing_leaves_the_transaction_alone(
    shop: Shop, opened: Opened
) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        transaction.release()
        next(iter(hand.commits.values()))()
    assert (shop.orders(), shop.outcomes()) == ({1}, {})


@every_hand
def test_a_block_that_sends_nothing_can_still_commit(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        for order in (1, 2):
            transaction = begin(shop, hand.db, new_id())
            hand.place(order)
            transaction.release()
            if order == 1:
                transaction.commit()
            else:
                transaction.rollback()
    assert (shop.orders(), shop.outcomes()) == ({1}, {})


def all_commits() -> list[Any]:
    ways = {
        "session": [
            "session",
            "its transaction",
            "its connection",
            "the driver's",
            "by hand",
            "a new begin",
        ],
        "connection": ["connection", "its transaction", "the driver's", "by hand", "a new begin"],
        "driver": ["connection", "with", "by hand"],
    }
    return [
        pytest.param(HANDS[name], way, id=f"{name}, {way}")
        for name, found in ways.items()
        for way in found
    ]


@pytest.mark.parametrize(("opened", "way"), all_commits())
def test_a_fenced_transaction_cannot_commit_by_any_way_the_api_offers(
    shop: Shop, opened: Opened, way: str
) -> None:
    key = new_id()
    with opened(shop) as hand:
        hand.execute("SELECT 1")
        transaction = begin(shop, hand.db, key)
        # SQLite has one lock for the whole database, so there the fence must precede the first
        # write.
        if shop.kind == "sqlite":
            shop.fence(key)
        hand.place(1)
        if shop.kind == "postgresql":
            shop.fence(key)
        with refused("transaction_fenced"):
            transaction.insert_row(NOW_MS)
        with pytest.raises(Exception):  # noqa: B017, PT011 -- each layer has its own error
            hand.commits[way]()
        with suppress(Exception):
            hand.place(2)
        with suppress(Exception):
            hand.commits[way]()
    assert (shop.orders(), shop.outcomes()) == (set(), {key: "rolled_back"})


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_after_a_rollback_a_fenced_session_can_be_used_again(shop: Shop, opened: Opened) -> None:
    key = new_id()
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, key)
        shop.fence(key)
        with refused("transaction_fenced"):
            transaction.insert_row(NOW_MS)
        with refused("transaction_poisoned"):
            hand.db.commit()
        hand.db.rollback()
        hand.place(2)
        hand.db.commit()
        transaction = begin(shop, hand.db, new_id())
        hand.place(3)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert shop.orders() == {2, 3}


def test_a_commit_refused_on_a_connection_leaves_nothing_for_the_next_one(shop: Shop) -> None:
    with connection_hand(shop) as hand:
        begin(shop, hand.db, new_id())
        hand.place(1)
        with refused("transaction_ended_inside"):
            hand.db.commit()
        hand.db.rollback()
        hand.place(2)
        hand.db.commit()
    assert (shop.orders(), shop.outcomes()) == ({2}, {})


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
@pytest.mark.parametrize("way", ["first", "its transaction", "its connection"])
def test_a_commit_inside_the_block_is_stopped_at_once(shop: Shop, opened: Opened, way: str) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        commit = hand.commits.get(way, hand.db.commit)
        with refused("transaction_ended_inside"):
            commit()
        assert shop.orders() == set()
        transaction.rollback()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


def test_a_commit_inside_the_block_is_stopped_on_a_plain_connection(postgres_shop: Shop) -> None:
    with driver_hand(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        with refused("transaction_ended_inside"):
            hand.db.commit()
        with refused("transaction_ended_inside"), hand.db:
            pass
        transaction.rollback()
    assert postgres_shop.orders() == set()


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
def test_an_end_by_hand_is_found_at_the_end_of_the_block(
    shop: Shop,
    sql: str,
    is_followed: bool,  # noqa: FBT001
) -> None:
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        hand.execute(sql)
        if is_followed:
            hand.place(2)
        with refused("transaction_ended_inside"):
            transaction.insert_row(NOW_MS)
    # A commit by hand keeps its rows without a message; the rest is rolled back.
    assert (shop.orders(), shop.outcomes()) == ({1} if sql == "COMMIT" else set(), {})


def test_a_script_that_commits_is_found_at_the_end_of_the_block(file_shop: Shop) -> None:
    with driver_hand(file_shop) as hand:
        transaction = begin(file_shop, hand.db, new_id())
        # sqlite3 commits before it runs a script.
        hand.db.executescript("INSERT INTO orders VALUES (1);")
        hand.place(2)
        with refused("transaction_ended_inside"):
            transaction.insert_row(NOW_MS)
    assert (file_shop.orders(), file_shop.outcomes()) == ({1}, {})


def test_a_commit_below_sqlalchemy_is_found_at_the_end_of_the_block(postgres_shop: Shop) -> None:
    with session_hand(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        hand.commits["the driver's"]()
        hand.place(2)
        with refused("transaction_ended_inside"):
            transaction.insert_row(NOW_MS)
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == ({1}, {})


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_a_rollback_inside_the_block_ends_it(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        hand.db.rollback()
        hand.place(2)
        with refused("transaction_ended_inside"):
            transaction.insert_row(NOW_MS)
    assert (shop.orders(), shop.outcomes()) == (set(), {})


def test_objects_that_were_added_are_written_before_the_row(shop: Shop) -> None:
    with Session(shop.engine()) as session:
        transaction = begin(shop, session, new_id())
        session.add(Order(number=1))
        transaction.insert_row(NOW_MS)
        assert not session.new
        transaction.commit()
    assert shop.orders() == {1}


def test_an_order_that_cannot_be_written_poisons_the_session(shop: Shop) -> None:
    shop.run("INSERT INTO orders VALUES (1)")
    with Session(shop.engine()) as session:
        transaction = begin(shop, session, new_id())
        session.add(Order(number=1))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            transaction.insert_row(NOW_MS)
        with pytest.raises(Exception):  # noqa: B017, PT011
            session.commit()
    assert shop.outcomes() == {}


@every_hand
def test_a_commit_that_fails_is_an_unknown_outcome_and_cannot_be_repeated(
    postgres_shop: Shop, opened: Opened
) -> None:
    key = new_id()
    with opened(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        transaction.insert_row(NOW_MS)
        pid = postgres_shop.run(
            "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )[0][0]
        postgres_shop.run(f"SELECT pg_terminate_backend({pid}, 5000)")
        with refused("commit_unknown"):
            transaction.commit()
        with suppress(Exception):
            hand.db.commit()
    # The fence succeeds at once, so the transaction can never commit.
    postgres_shop.fence(key)
    assert postgres_shop.orders() == set()


@every_hand
def test_sqlite_does_not_keep_a_failed_commit_for_later(file_shop: Shop, opened: Opened) -> None:
    key = new_id()
    with opened(file_shop) as hand:
        transaction = begin(file_shop, hand.db, key)
        hand.place(1)
        transaction.insert_row(NOW_MS)
        hand.execute("PRAGMA busy_timeout = 0")
        # In the old journal mode, a reader blocks a COMMIT.
        reader = file_shop.connect(isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchall()
        with refused("commit_unknown"):
            transaction.commit()
        reader.close()
        for commit in hand.commits.values():
            with suppress(Exception):
                commit()
    file_shop.fence(key)
    assert file_shop.orders() == set()


@every_hand
def test_a_row_that_cannot_be_written_rolls_back_for_good(
    postgres_shop: Shop, opened: Opened
) -> None:
    with opened(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        with suppress(Exception):
            hand.execute("SELECT 1 / 0")
        with refused("transaction_aborted"):
            transaction.insert_row(NOW_MS)
        with pytest.raises(Exception):  # noqa: B017, PT011
            hand.db.commit()
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == (set(), {})


def test_a_constraint_that_is_deferred_to_the_commit_leaves_neither(postgres_shop: Shop) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand:
        hand.execute(
            "CREATE TEMPORARY TABLE later (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        hand.db.commit()
        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        hand.execute("INSERT INTO later VALUES (1), (1)")
        transaction.insert_row(NOW_MS)
        with pytest.raises(psycopg.errors.UniqueViolation):
            transaction.commit()
    postgres_shop.fence(key)
    assert postgres_shop.orders() == set()
