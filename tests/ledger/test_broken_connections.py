"""Connections that break, and interruptions, at each step of a block."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress

import pytest

from escrowmq.client.ledger.table import LedgerOutcome
from escrowmq.model.errors import EscrowError
from tests.ledger.shops import (
    GROUP,
    HANDS,
    NOW_MS,
    Hand,
    Shop,
    begin,
    driver_hand,
    new_id,
    overdue,
    refused,
)

Opened = Callable[..., AbstractContextManager[Hand]]
every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)


def break_all(shop: Shop) -> None:
    shop.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


@every_hand
@pytest.mark.parametrize("step", ["begin", "insert_row", "commit", "rollback", "poison"])
def test_a_connection_that_breaks_leaves_order_and_row_together(
    postgres_shop: Shop, opened: Opened, step: str
) -> None:
    key = new_id()
    # Load the ledger's UUID first, so that only the user's connection breaks.
    postgres_shop.ledger().uuid()
    with suppress(ConnectionError), opened(postgres_shop) as hand:
        hand.execute("SELECT 1")
        transaction = postgres_shop.ledger().transaction(
            hand.db, transaction_id=key, producer_group=GROUP
        )

        def run(name: str, call: Callable[[], None]) -> None:
            if name == step:
                break_all(postgres_shop)
                with refused("ledger_unreachable", "ledger_row_failed", "commit_unknown"):
                    call()
                raise ConnectionError
            call()

        run("begin", lambda: transaction.begin(NOW_MS))
        hand.place(1)
        if step in {"rollback", "poison"}:
            break_all(postgres_shop)
            # The server has already rolled back the transaction.
            getattr(transaction, step)()
            raise ConnectionError
        run("insert_row", lambda: transaction.insert_row(NOW_MS))
        run("commit", transaction.commit)
    answer = postgres_shop.settle(overdue(key))[key]
    assert answer.outcome is LedgerOutcome.ROLLED_BACK
    assert postgres_shop.orders() == set()


class Interrupted(sqlite3.Connection):
    """A connection that is interrupted just after its COMMIT."""

    def commit(self) -> None:
        super().commit()
        raise KeyboardInterrupt


def test_an_interruption_during_commit_is_an_unknown_outcome(file_shop: Shop) -> None:
    key = new_id()
    with closing(file_shop.connect(factory=Interrupted)) as db:
        transaction = begin(file_shop, db, key)
        db.execute("INSERT INTO orders VALUES (1)")
        transaction.insert_row(NOW_MS)
        with refused("commit_unknown"):
            transaction.commit()
        with pytest.raises(sqlite3.ProgrammingError):
            db.execute("SELECT 1")
    assert file_shop.settle(overdue(key))[key].outcome is LedgerOutcome.COMMITTED
    assert file_shop.orders() == {1}


def test_an_interruption_of_the_row_commits_nothing(file_shop: Shop) -> None:
    with closing(file_shop.connect()) as db:
        transaction = begin(file_shop, db, new_id())
        db.execute("INSERT INTO orders VALUES (1)")
        connection = transaction._connection  # type: ignore[attr-defined]

        def interrupt(*_arguments: object) -> None:
            raise KeyboardInterrupt

        connection.execute = interrupt
        with pytest.raises(KeyboardInterrupt):
            transaction.insert_row(NOW_MS)
        with pytest.raises(sqlite3.ProgrammingError):
            db.commit()
    assert (file_shop.orders(), file_shop.outcomes()) == (set(), {})


@every_hand
def test_poison_is_for_good(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        transaction.poison()
        transaction.poison()
        transaction.rollback()
        with pytest.raises(Exception):  # noqa: B017, PT011
            hand.db.commit()
        with pytest.raises(EscrowError):
            transaction.insert_row(NOW_MS)
    assert (shop.orders(), shop.outcomes()) == (set(), {})


def test_a_row_is_written_once(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        transaction.insert_row(NOW_MS)
        with refused("transaction_ended_inside"):
            transaction.insert_row(NOW_MS)
    assert shop.outcomes() == {}
