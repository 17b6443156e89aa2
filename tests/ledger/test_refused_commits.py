"""A COMMIT that the database certainly refuses: rolled back, with the driver's own error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import OutcomeUnknown, RequestRefused
from escrowmq.transaction.states import State
from tests.ledger.async_hands import ASYNC_HANDS, Opened, begun, place, run
from tests.ledger.deferred import (
    FOREIGN,
    INTEGRITY,
    always_look_at_foreign_keys,
    deferring_items,
    look_at_foreign_keys,
)
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import (
    HANDS,
    NOW_MS,
    Shop,
    begin,
    new_id,
    refused,
    session_hand,
)

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)


@contextmanager
def refusing(shop: Shop, state: str) -> Iterator[None]:
    """Make COMMIT refuse orders with the given SQLSTATE."""
    shop.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"
    )
    shop.run(
        "CREATE CONSTRAINT TRIGGER refusing AFTER INSERT ON orders"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        yield
    finally:
        shop.run("DROP TRIGGER refusing ON orders")
        shop.run("DROP FUNCTION refuse()")


@every_hand
async def test_a_refused_commit_raises_the_drivers_error_and_can_be_tried_again(
    deferring: Shop, tmp_path: Path, opened: Any
) -> None:
    async with market(deferring, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(deferring) as hand:
                look_at_foreign_keys(deferring, hand.execute)
                with pytest.raises(INTEGRITY), producer.transaction(hand.db) as tx:
                    hand.place(1)
                    hand.execute(FOREIGN)
                    tx.send(PAID, b"1")
                assert tx.state is TransactionState.ROLLED_BACK
                assert deferring.orders() == set()
                # A retry loop around the block does this, on the same connection.
                with producer.transaction(hand.db) as tx:
                    hand.place(2)
                    tx.send(PAID, b"2")
                assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        await there.hears(State.ROLLED_BACK, State.COMMITTED)
        await there.agrees({2})


@every_async_hand
async def test_a_refused_commit_that_is_awaited_raises_the_drivers_error(
    async_deferring: Shop, tmp_path: Path, opened: Opened
) -> None:
    async with market(async_deferring, tmp_path) as there, opened(async_deferring) as db:
        if async_deferring.kind == "sqlite":
            await run(db, "PRAGMA foreign_keys = on")
        producer = there.async_producer()
        with pytest.raises(INTEGRITY):
            async with producer.transaction(db) as tx:
                await place(db, 1)
                await run(db, FOREIGN)
                tx.send(PAID, b"1")
        assert tx.state is TransactionState.ROLLED_BACK
        async with producer.transaction(db) as tx:
            await place(db, 2)
            tx.send(PAID, b"2")
        await there.hears(State.ROLLED_BACK, State.COMMITTED)
        await there.agrees({2})


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_a_refused_commit_of_the_callers_rolls_the_messages_back(
    deferring: Shop, tmp_path: Path, kind: str
) -> None:
    async with market(deferring, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            always_look_at_foreign_keys(deferring, there.engine)
            opened: Any = Session(there.engine) if kind == "session" else there.engine.connect()
            with opened as db:
                with (
                    pytest.raises(sqlalchemy.exc.IntegrityError),
                    db.begin(),
                    producer.transaction(db) as tx,
                ):
                    db.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
                    db.execute(sqlalchemy.text(FOREIGN))
                    tx.send(PAID, b"1")
                assert tx.state is TransactionState.ROLLED_BACK
                with db.begin(), producer.transaction(db) as tx:
                    db.execute(sqlalchemy.text("INSERT INTO orders VALUES (2)"))
                    tx.send(PAID, b"2")
                assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        await there.hears(State.ROLLED_BACK, State.COMMITTED)
        await there.agrees({2})


async def test_a_refused_commit_of_an_awaited_callers_rolls_the_messages_back(
    async_deferring: Shop, tmp_path: Path
) -> None:
    engine = async_deferring.async_engine()
    always_look_at_foreign_keys(async_deferring, engine.sync_engine)
    async with market(async_deferring, tmp_path) as there, AsyncSession(engine) as db:
        producer = there.async_producer()

        async def sell() -> Any:
            async with db.begin(), producer.transaction(db) as tx:
                await place(db, 1)
                await run(db, FOREIGN)
                tx.send(PAID, b"1")
                return tx

        with pytest.raises(sqlalchemy.exc.IntegrityError):
            await sell()
        await there.hears(State.ROLLED_BACK)
        await there.agrees(set())


CERTAIN = ["23505", "23514", "40001", "40P01"]
UNCERTAIN = ["40003", "40002", "08006", "57014", "57P01", "P0001", "25P02"]


@every_hand
@pytest.mark.parametrize("state", [*CERTAIN, *UNCERTAIN])
def test_which_answers_to_commit_are_certain(postgres_shop: Shop, opened: Any, state: str) -> None:
    with refusing(postgres_shop, state), opened(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- checked below
            transaction.commit()
    raised: Any = caught.value
    if state in CERTAIN:
        assert getattr(raised, "orig", raised).sqlstate == state
    else:
        assert isinstance(raised, OutcomeUnknown)
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == (set(), {})


@pytest.mark.parametrize("state", ["40003", "57P01"])
async def test_an_uncertain_answer_to_the_callers_commit_is_left_to_the_check(
    postgres_shop: Shop, tmp_path: Path, state: str
) -> None:
    async with market(postgres_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                Session(there.engine) as session,
                refused("commit_unknown"),
                session.begin(),
                producer.transaction(session) as tx,
            ):
                session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
                tx.send(PAID, b"1")
            assert tx.state is TransactionState.UNKNOWN

        with refusing(postgres_shop, state):
            await in_thread(sell)
        assert there.states() == [State.PREPARED]
        await there.agrees(set())


@every_async_hand
@pytest.mark.parametrize("state", ["40001", "40003"])
async def test_which_awaited_answers_to_commit_are_certain(
    async_postgres_shop: Shop, opened: Opened, state: str
) -> None:
    with refusing(async_postgres_shop, state):
        async with opened(async_postgres_shop) as db:
            transaction = await begun(async_postgres_shop, db)
            await place(db, 1)
            await transaction.insert_row(NOW_MS)
            with pytest.raises(Exception) as caught:  # noqa: PT011 -- as above
                await transaction.commit()
    raised: Any = caught.value
    if state == "40001":
        assert getattr(raised, "orig", raised).sqlstate == state
    else:
        assert isinstance(raised, OutcomeUnknown)
    assert (async_postgres_shop.orders(), async_postgres_shop.outcomes()) == (set(), {})


class Counting(psycopg.Connection[Any]):
    """A connection class with its own commit()."""

    commits = 0

    def commit(self) -> None:
        self.commits += 1
        super().commit()


def test_a_commit_of_the_users_own_class_is_called_and_its_answer_told(postgres_shop: Shop) -> None:
    with deferring_items(postgres_shop), closing(Counting.connect(postgres_shop.url)) as db:
        for sql, error in ((FOREIGN, psycopg.IntegrityError), ("SELECT 1 / 0", RequestRefused)):
            transaction = begin(postgres_shop, db, new_id())
            transaction.insert_row(NOW_MS)
            with suppress(psycopg.Error):
                db.execute(sql)
            with pytest.raises(error):
                transaction.commit()
        begin(postgres_shop, db, new_id()).rollback()
        # An aborted transaction does not reach commit().
        assert db.commits == 1
    assert postgres_shop.outcomes() == {}


class Stuck(sqlite3.Connection):
    """A connection that cannot roll back."""

    def rollback(self) -> None:
        message = "not now"
        raise sqlite3.OperationalError(message)


def test_a_constraint_in_sqlite_is_uncertain_until_it_is_rolled_back(file_shop: Shop) -> None:
    key = new_id()
    with deferring_items(file_shop), closing(file_shop.connect(factory=Stuck)) as db:
        db.execute("PRAGMA foreign_keys = on")
        transaction = begin(file_shop, db, key)
        db.execute(FOREIGN)
        transaction.insert_row(NOW_MS)
        with refused("commit_unknown"):
            transaction.commit()
        with pytest.raises(sqlite3.ProgrammingError):
            db.execute("SELECT 1")
    file_shop.fence(key)


@every_hand
def test_a_write_skew_that_commit_finds_is_a_serialization_failure(
    postgres_shop: Shop, opened: Any
) -> None:
    postgres_shop.run("INSERT INTO orders VALUES (10), (20)")
    other = psycopg.connect(postgres_shop.url)
    other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with opened(postgres_shop) as hand, other:
        hand.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.execute("SELECT * FROM orders WHERE number = 10")
        other.execute("SELECT * FROM orders WHERE number = 20")
        hand.execute("UPDATE orders SET number = 21 WHERE number = 20")
        other.execute("UPDATE orders SET number = 11 WHERE number = 10")
        transaction.insert_row(NOW_MS)
        other.commit()
        with pytest.raises((psycopg.OperationalError, sqlalchemy.exc.OperationalError)) as caught:
            transaction.commit()
        raised: Any = caught.value
        assert getattr(raised, "orig", raised).sqlstate == "40001"
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == ({11, 20}, {})


def test_an_error_of_a_listener_after_commit_is_no_answer_to_commit(postgres_shop: Shop) -> None:
    """The error looks like a constraint's, but the transaction is committed."""
    key = new_id()
    postgres_shop.run("INSERT INTO orders VALUES (7)")
    with session_hand(postgres_shop) as hand:

        @event.listens_for(hand.db, "after_commit")
        def collide(_session: Session) -> None:
            with postgres_shop.engine().begin() as other:
                other.exec_driver_sql("INSERT INTO orders VALUES (7)")

        transaction = begin(postgres_shop, hand.db, key)
        hand.place(1)
        transaction.insert_row(NOW_MS)
        with refused("commit_unknown"):
            transaction.commit()
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == ({1, 7}, {key: "committed"})
