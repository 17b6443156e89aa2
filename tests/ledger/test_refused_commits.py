"""A COMMIT that the database refuses for certain: rolled back, and the driver's own error."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it brings no types
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.consume_transaction import ConsumeTransaction
from escrowmq.client.transaction_order import TransactionState
from escrowmq.model.errors import OutcomeUnknown
from escrowmq.transaction.states import State
from tests.ledger.async_hands import ASYNC_HANDS, Opened, place
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, Market, in_thread, market
from tests.ledger.shops import HANDS, NOW_MS, Shop, begin, new_id, refused, session_hand
from tests.unit.broker.wire import eventually

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)

#: What the drivers and SQLAlchemy raise for a constraint.
INTEGRITY = (
    sqlite3.IntegrityError,
    psycopg.IntegrityError,
    asyncpg.IntegrityConstraintViolationError,
    sqlalchemy.exc.IntegrityError,
)

FOREIGN = "INSERT INTO items VALUES (1, 99)"


@pytest.fixture
def deferring(shop: Shop) -> Iterator[Shop]:
    """A shop with items that must belong to an order, which is looked at by COMMIT."""
    with items(shop):
        yield shop


@pytest.fixture
def async_deferring(async_shop: Shop) -> Iterator[Shop]:
    """The same for each driver that is awaited."""
    with items(async_shop):
        yield async_shop


@contextmanager
def items(shop: Shop) -> Iterator[None]:
    shop.run(
        "CREATE TABLE IF NOT EXISTS items (number integer PRIMARY KEY, of integer"
        " REFERENCES orders (number) DEFERRABLE INITIALLY DEFERRED)"
    )
    yield
    shop.run("DROP TABLE items")


@contextmanager
def refusing(shop: Shop, state: str) -> Iterator[None]:
    """Orders are refused by COMMIT, with an SQLSTATE of our choice."""
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


def look_at_foreign_keys(shop: Shop, execute: Callable[[str], Any]) -> None:
    if shop.kind == "sqlite":
        execute("PRAGMA foreign_keys = on")


def always_look_at_foreign_keys(shop: Shop, engine: sqlalchemy.Engine) -> None:
    if shop.kind == "sqlite":
        event.listen(
            engine, "connect", lambda made, _: made.cursor().execute("PRAGMA foreign_keys = on")
        )


async def run(db: Any, sql: str) -> None:
    is_sqlalchemy = type(db).__module__.startswith("sqlalchemy")
    await db.execute(sqlalchemy.text(sql) if is_sqlalchemy else sql)


async def told(there: Market, *states: State) -> None:
    """The broker hears of it from the block, without a check."""
    await eventually(lambda: there.states() == list(states))


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
                # As a loop around the block does it, on the same connection.
                with producer.transaction(hand.db) as tx:
                    hand.place(2)
                    tx.send(PAID, b"2")
                assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        await told(there, State.ROLLED_BACK, State.COMMITTED)
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
        await told(there, State.ROLLED_BACK, State.COMMITTED)
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
        await told(there, State.ROLLED_BACK, State.COMMITTED)
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
        await told(there, State.ROLLED_BACK)
        await there.agrees(set())


@every_hand
def test_a_refused_commit_leaves_the_message_unconsumed(deferring: Shop, opened: Any) -> None:
    with opened(deferring) as hand:
        look_at_foreign_keys(deferring, hand.execute)
        with pytest.raises(INTEGRITY), ConsumeTransaction("group", hand.db, delivery()):
            hand.execute(FOREIGN)
        assert consumed(deferring) == set()
        with ConsumeTransaction("group", hand.db, delivery()):
            hand.place(1)
    assert (consumed(deferring), deferring.orders()) == ({"m-1"}, {1})


@every_async_hand
async def test_a_refused_commit_that_is_awaited_leaves_the_message_unconsumed(
    async_deferring: Shop, opened: Opened
) -> None:
    async with opened(async_deferring) as db:
        if async_deferring.kind == "sqlite":
            await run(db, "PRAGMA foreign_keys = on")
        with pytest.raises(INTEGRITY):
            async with ConsumeTransaction("group", db, delivery()):
                await run(db, FOREIGN)
        assert consumed(async_deferring) == set()
        async with ConsumeTransaction("group", db, delivery()):
            await place(db, 1)
    assert (consumed(async_deferring), async_deferring.orders()) == ({"m-1"}, {1})


CERTAIN = ["23505", "23514", "40001", "40P01"]
UNCERTAIN = ["40003", "40002", "08006", "57014", "57P01", "P0001", "25P02"]


@every_hand
@pytest.mark.parametrize("state", [*CERTAIN, *UNCERTAIN])
def test_which_answers_to_commit_are_certain(postgres_shop: Shop, opened: Any, state: str) -> None:
    with refusing(postgres_shop, state), opened(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- which one is told below
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
            ledger = async_postgres_shop.ledger()
            transaction = await ledger.transaction_async(
                db, transaction_id=new_id(), producer_group="orders"
            )
            await transaction.begin(NOW_MS)
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


class Stuck(sqlite3.Connection):
    """Cannot roll back."""

    def rollback(self) -> None:
        message = "not now"
        raise sqlite3.OperationalError(message)


def test_a_constraint_in_sqlite_is_uncertain_until_it_is_rolled_back(file_shop: Shop) -> None:
    key = new_id()
    with items(file_shop), closing(file_shop.connect(factory=Stuck)) as db:
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
def test_a_block_in_a_transaction_that_failed_before_is_refused(
    postgres_shop: Shop, opened: Any
) -> None:
    with opened(postgres_shop) as hand:
        with suppress(Exception):
            hand.execute("SELECT 1 / 0")
        with refused("transaction_aborted"):
            begin(postgres_shop, hand.db, new_id())
        hand.db.rollback()
        with suppress(Exception):
            hand.execute("SELECT 1 / 0")
        with refused("transaction_aborted"), ConsumeTransaction("group", hand.db, delivery()):
            pytest.fail("nothing of it could be committed")


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
    """It looks like a constraint's, and the transaction is committed."""
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


@every_hand
@pytest.mark.parametrize("is_sending", [True, False])
async def test_a_transaction_that_a_swallowed_error_aborted_is_never_taken_for_committed(
    postgres_shop: Shop, tmp_path: Path, opened: Any, *, is_sending: bool
) -> None:
    async with market(postgres_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(postgres_shop) as hand:
                with refused("transaction_aborted"), producer.transaction(hand.db) as tx:
                    hand.place(1)
                    with suppress(Exception):
                        hand.execute("SELECT 1 / 0")
                    if is_sending:
                        tx.send(PAID, b"1")
                assert tx.state is ended(is_sending=is_sending)

        await in_thread(sell)
        await told(there, *[State.ROLLED_BACK] * is_sending)
        assert postgres_shop.orders() == there.paid() == set()


def ended(*, is_sending: bool) -> TransactionState:
    """A block without messages has nobody to ask."""
    return TransactionState.ROLLED_BACK if is_sending else TransactionState.UNKNOWN


@every_async_hand
@pytest.mark.parametrize("is_sending", [True, False])
async def test_an_awaited_transaction_that_was_aborted_is_never_taken_for_committed(
    async_postgres_shop: Shop, tmp_path: Path, opened: Opened, *, is_sending: bool
) -> None:
    async with market(async_postgres_shop, tmp_path) as there, opened(async_postgres_shop) as db:
        producer = there.async_producer()
        with refused("transaction_aborted"):
            async with producer.transaction(db) as tx:
                await place(db, 1)
                with suppress(Exception):
                    await run(db, "SELECT 1 / 0")
                if is_sending:
                    tx.send(PAID, b"1")
        assert tx.state is ended(is_sending=is_sending)
        await told(there, *[State.ROLLED_BACK] * is_sending)
        assert async_postgres_shop.orders() == there.paid() == set()


@pytest.mark.parametrize("is_callers", [True, False])
async def test_a_listener_that_aborts_the_transaction_after_the_row_rolls_it_back(
    postgres_shop: Shop, tmp_path: Path, *, is_callers: bool
) -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK, and the drivers say nothing."""
    async with market(postgres_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session, refused("transaction_aborted"):
                if is_callers:
                    session.begin()
                with producer.transaction(session) as tx:
                    session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
                    tx.send(PAID, b"1")

                    @event.listens_for(session, "before_commit")
                    def fail(_session: Session) -> None:
                        with suppress(Exception):
                            session.connection().exec_driver_sql("SELECT 1 / 0")

                session.commit()
            assert tx.state is TransactionState.ROLLED_BACK

        await in_thread(sell)
        await told(there, State.ROLLED_BACK)
        await there.agrees(set())
