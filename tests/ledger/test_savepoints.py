"""A message belongs to the savepoint in which it was sent, however the savepoint was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import HANDS, Hand, Order, Shop, driver_hand, refused

Opened = Callable[..., AbstractContextManager[Hand]]
Savepoint = Callable[[Hand], AbstractContextManager[None]]


@contextmanager
def by_hand(hand: Hand) -> Iterator[None]:
    hand.execute("SAVEPOINT mine")
    try:
        yield
    except BaseException:
        hand.execute("ROLLBACK TO SAVEPOINT mine")
        raise
    finally:
        hand.execute("RELEASE SAVEPOINT mine")


@contextmanager
def by_library(hand: Hand) -> Iterator[None]:
    """Use SQLAlchemy's begin_nested(), or psycopg's transaction()."""
    begin: Any = getattr(hand.db, "begin_nested", None) or hand.db.transaction
    with begin():
        yield


#: Every hand with each of its ways to make a savepoint; sqlite3 has no call of its own.
WAYS = [
    pytest.param(kind, hand, way, id=f"{kind}-{hand}-{way.__name__}")
    for kind in ("file_shop", "postgres_shop")
    for hand in HANDS
    for way in (by_hand, by_library)
    if (kind, hand, way) != ("file_shop", "driver", by_library)
]
every_way = pytest.mark.parametrize(("kind", "name", "savepoint"), WAYS)


@pytest.fixture
def chosen(kind: str, request: pytest.FixtureRequest) -> Shop:
    found: Shop = request.getfixturevalue(kind)
    return found


@every_way
async def test_messages_are_rolled_back_with_their_savepoint_and_kept_with_its_release(
    chosen: Shop, tmp_path: Path, name: str, savepoint: Savepoint
) -> None:
    async with market(chosen, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS[name](chosen) as hand:

                def pay(tx: Any, number: int) -> None:
                    hand.place(number)
                    tx.send(PAID, b"%d" % number)

                with producer.transaction(hand.db) as tx:
                    pay(tx, 1)
                    with savepoint(hand):
                        pay(tx, 2)
                    with suppress(KeyError), savepoint(hand):
                        pay(tx, 3)
                        with savepoint(hand):
                            pay(tx, 4)
                        raise KeyError
                    with savepoint(hand):
                        with suppress(KeyError), savepoint(hand):
                            pay(tx, 5)
                            raise KeyError
                        pay(tx, 6)
                    pay(tx, 7)
                # The next block on this connection begins without marks.
                with producer.transaction(hand.db) as tx:
                    with suppress(KeyError), savepoint(hand):
                        pay(tx, 8)
                        raise KeyError
                    pay(tx, 9)

        await in_thread(sell)
        await there.agrees({1, 2, 6, 7, 9})


@every_way
async def test_a_block_whose_messages_were_all_rolled_back_just_commits(
    chosen: Shop, tmp_path: Path, name: str, savepoint: Savepoint
) -> None:
    async with market(chosen, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS[name](chosen) as hand:
                with producer.transaction(hand.db) as tx:
                    hand.place(1)
                    with suppress(KeyError), savepoint(hand):
                        hand.place(2)
                        tx.send(PAID, b"2")
                        raise KeyError
                assert tx.state == "committed"

        await in_thread(sell)
        assert (chosen.orders(), there.paid(), there.states()) == ({1}, set(), [])
        assert chosen.outcomes() == {}


CALLERS = ["session", "connection"]


@pytest.mark.parametrize("is_first_kept", [False, True])
@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("savepoint", [by_hand, by_library])
async def test_the_same_where_the_caller_commits(
    shop: Shop, tmp_path: Path, name: str, savepoint: Savepoint, *, is_first_kept: bool
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS[name](shop) as hand, hand.db.begin():
                hand.place(1)
                with producer.transaction(hand.db) as tx:
                    if is_first_kept:
                        tx.send(PAID, b"1")
                    with suppress(KeyError), savepoint(hand):
                        hand.place(2)
                        tx.send(PAID, b"2")
                        raise KeyError
                hand.place(3)

        await in_thread(sell)
        assert there.paid() == ({1} if is_first_kept else set())
        assert shop.orders() == {1, 3}


async def test_a_caller_that_rolls_back_to_before_a_send_after_the_block_takes_it_back(
    file_shop: Shop, tmp_path: Path
) -> None:
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session, session.begin():
                with producer.transaction(session) as tx:
                    session.execute(sqlalchemy.text("SAVEPOINT mine"))
                    session.add(Order(number=1))
                    tx.send(PAID, b"1")
                session.flush()
                session.execute(sqlalchemy.text("ROLLBACK TO SAVEPOINT mine"))
                session.expunge_all()

        await in_thread(sell)
        assert file_shop.orders() == there.paid() == set()


async def test_the_body_of_a_message_that_was_rolled_back_is_not_made(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session, producer.transaction(session) as tx:
                order = Order(number=1)
                session.add(order)
                tx.send(PAID, lambda: str(order.number))
                with suppress(KeyError), session.begin_nested():
                    tx.send(PAID, lambda: pytest.fail("its row is gone"))
                    raise KeyError

        await in_thread(sell)
        await there.agrees({1})


async def test_savepoints_inside_a_bodys_function_count(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with driver_hand(shop) as hand, producer.transaction(hand.db) as tx:
                hand.place(1)

                def body() -> bytes:
                    with suppress(KeyError), by_hand(hand):
                        tx.send(PAID, b"2")
                        raise KeyError
                    with by_hand(hand):
                        hand.place(3)
                        tx.send(PAID, b"3")
                    return b"1"

                tx.send(PAID, body)

        await in_thread(sell)
        await there.agrees({1, 3})


async def test_a_statement_that_failed_in_the_savepoint_takes_its_messages(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with driver_hand(postgres_shop) as hand, producer.transaction(hand.db) as tx:
                hand.place(1)
                tx.send(PAID, b"1")
                with suppress(psycopg.errors.UniqueViolation), hand.db.transaction():
                    tx.send(PAID, b"2")
                    hand.place(1)
                with suppress(psycopg.errors.DivisionByZero), hand.db.transaction():
                    with suppress(psycopg.errors.DivisionByZero):
                        hand.execute("SELECT 1 / 0")
                    with refused("transaction_aborted"):
                        tx.send(PAID, b"3")
                    raise psycopg.errors.DivisionByZero

        await in_thread(sell)
        await there.agrees({1})


async def test_a_raised_block_leaves_no_marks(file_shop: Shop, tmp_path: Path) -> None:
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with driver_hand(file_shop) as hand:
                for number in (1, 2):
                    with suppress(KeyError), producer.transaction(hand.db) as tx:
                        hand.place(number)
                        tx.send(PAID, b"%d" % number)
                        if number == 1:
                            raise KeyError
                left = hand.execute("SELECT count(*) FROM temp.escrowmq_marker").fetchall()
                assert left == [(0,)]

        await in_thread(sell)
        await there.agrees({2})


@pytest.mark.parametrize("name", CALLERS)
async def test_without_savepoints_no_mark_is_written_and_begin_nested_is_refused(
    shop: Shop, tmp_path: Path, name: str
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(ledger=SqlLedger(shop.url, savepoints=False))
            with HANDS[name](shop) as hand, producer.transaction(hand.db) as tx:
                hand.place(1)
                tx.send(PAID, b"1")
                with hand.db.begin_nested(), refused("savepoint_open"):
                    tx.send(PAID, b"2")
                found = hand.execute(
                    "SELECT count(*) FROM sqlite_temp_master"
                    if shop.kind == "sqlite"
                    else "SELECT length(current_setting('escrowmq.sent', true))"
                )
                assert not found.scalar()

        await in_thread(sell)
        await there.agrees({1})
