"""Where the caller's own block commits, our steps run in SQLAlchemy's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from escrowmq.client.ledger.table import DatabaseTransaction, TransactionEnding
from escrowmq.model.errors import EscrowError
from tests.ledger.shops import NOW_MS, Order, Shop, begin, new_id, refused, root_of


class Part:
    """The callbacks of a producer, and the endings that they were told."""

    def __init__(self, transaction: DatabaseTransaction) -> None:
        self.endings: list[TransactionEnding] = []
        self.was_called = 0
        self.error: BaseException | None = None
        self._transaction = transaction
        transaction.on_before_commit(self._write)
        transaction.on_ended(self.endings.append)

    def _write(self) -> None:
        self.was_called += 1
        if self.error is not None:
            raise self.error
        self._transaction.insert_row(NOW_MS)


@contextmanager
def a_session(shop: Shop) -> Iterator[Session]:
    with Session(shop.engine()) as session, session.begin():
        yield session


@contextmanager
def a_made_session(shop: Shop) -> Iterator[Session]:
    with sessionmaker(shop.engine()).begin() as session:
        yield session


@contextmanager
def a_session_begun_by_hand(shop: Shop) -> Iterator[Session]:
    with Session(shop.engine()) as session:
        session.begin()
        yield session
        session.commit()


@contextmanager
def an_engine(shop: Shop) -> Iterator[sqlalchemy.Connection]:
    with shop.engine().begin() as connection:
        yield connection


@contextmanager
def a_connection(shop: Shop) -> Iterator[sqlalchemy.Connection]:
    with shop.engine().connect() as connection, connection.begin():
        yield connection


Opened = Callable[[Shop], AbstractContextManager[Any]]
OPENED: list[Opened] = [
    a_session,
    a_made_session,
    a_session_begun_by_hand,
    an_engine,
    a_connection,
]
every_way = pytest.mark.parametrize("opened", OPENED)


def place(db: Any, number: int) -> None:
    db.execute(sqlalchemy.text(f"INSERT INTO orders VALUES ({number})"))


@every_way
def test_order_and_row_are_committed_by_the_caller(shop: Shop, opened: Opened) -> None:
    key = new_id()
    with opened(shop) as db:
        transaction = begin(shop, db, key)
        assert transaction.is_commit_owned_by_caller
        place(db, 1)
        part = Part(transaction)
        assert (part.was_called, part.endings) == (0, [])
    assert (part.was_called, part.endings) == (1, [TransactionEnding.COMMITTED])
    assert (shop.orders(), shop.outcomes()) == ({1}, {key: "committed"})


@every_way
def test_the_message_may_be_decided_only_when_the_order_is_in(shop: Shop, opened: Opened) -> None:
    seen: list[set[int]] = []
    with opened(shop) as db:
        transaction = begin(shop, db, new_id())
        place(db, 1)
        transaction.on_before_commit(lambda: transaction.insert_row(NOW_MS))
        transaction.on_ended(lambda _ending: seen.append(shop.orders()))
    assert seen == [{1}]


@every_way
def test_a_rollback_by_the_caller_is_told(shop: Shop, opened: Opened) -> None:
    with suppress(KeyError), opened(shop) as db:
        part = Part(begin(shop, db, new_id()))
        place(db, 1)
        raise KeyError
    assert (part.was_called, part.endings) == (0, [TransactionEnding.ROLLED_BACK])
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_way
def test_a_fenced_transaction_fails_in_the_callers_commit(shop: Shop, opened: Opened) -> None:
    key = new_id()
    with refused("transaction_fenced"), opened(shop) as db:
        part = Part(begin(shop, db, key))
        if shop.kind == "sqlite":
            shop.fence(key)
        place(db, 1)
        if shop.kind == "postgresql":
            shop.fence(key)
    assert part.endings == [TransactionEnding.ROLLED_BACK]
    assert (shop.orders(), shop.outcomes()) == (set(), {key: "rolled_back"})


@every_way
def test_half_messages_that_fail_stop_the_callers_commit(shop: Shop, opened: Opened) -> None:
    with pytest.raises(ConnectionError), opened(shop) as db:
        part = Part(begin(shop, db, new_id()))
        part.error = ConnectionError("no broker")
        place(db, 1)
    assert (part.was_called, part.endings) == (1, [TransactionEnding.ROLLED_BACK])
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@pytest.mark.parametrize("opened", [a_session, a_connection])
def test_a_commit_that_was_stopped_cannot_be_repeated(shop: Shop, opened: Opened) -> None:
    database = Session(shop.engine()) if opened is a_session else shop.engine().connect()
    with database as db:
        db.begin()
        if opened is a_connection:
            # On a connection, only the context manager makes the commit the caller's.
            root_of(db).__enter__()
        part = Part(begin(shop, db, new_id()))
        part.error = ConnectionError("no broker")
        place(db, 1)
        with pytest.raises(ConnectionError):
            root_of(db).commit()
        part.error = None
        for _ in range(2):
            with pytest.raises(Exception):  # noqa: B017, PT011
                root_of(db).commit()
            with suppress(Exception):
                place(db, 2)
    assert (part.was_called, part.endings) == (1, [TransactionEnding.ROLLED_BACK])
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_way
def test_a_failure_inside_the_block_that_the_caller_swallows_still_stops_the_commit(
    shop: Shop, opened: Opened
) -> None:
    with suppress(SQLAlchemyError, EscrowError), opened(shop) as db:
        transaction = begin(shop, db, new_id())
        place(db, 1)
        transaction.poison()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_way
def test_a_rollback_by_our_block_leaves_the_caller_nothing_to_commit(
    shop: Shop, opened: Opened
) -> None:
    with suppress(SQLAlchemyError, EscrowError), opened(shop) as db:
        transaction = begin(shop, db, new_id())
        place(db, 1)
        transaction.rollback()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_way
def test_a_commit_before_the_block_has_ended_is_refused(shop: Shop, opened: Opened) -> None:
    with suppress(SQLAlchemyError, EscrowError), opened(shop) as db:
        begin(shop, db, new_id())
        place(db, 1)
        with refused("transaction_ended_inside"):
            root_of(db).commit()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_way
def test_a_block_that_sends_nothing_leaves_the_commit_alone(shop: Shop, opened: Opened) -> None:
    with opened(shop) as db:
        transaction = begin(shop, db, new_id())
        place(db, 1)
        part = Part(transaction)
        transaction.release()
    assert (part.was_called, part.endings) == (0, [])
    assert (shop.orders(), shop.outcomes()) == ({1}, {})


@every_way
def test_savepoints_of_the_caller_do_not_count_as_its_commit(shop: Shop, opened: Opened) -> None:
    with opened(shop) as db:
        place(db, 1)
        part = Part(begin(shop, db, new_id()))
        with db.begin_nested():
            place(db, 2)
        with suppress(KeyError), db.begin_nested():
            place(db, 3)
            raise KeyError
        assert (part.was_called, part.endings) == (0, [])
    assert (part.was_called, part.endings) == (1, [TransactionEnding.COMMITTED])
    assert shop.orders() == {1, 2}


def test_objects_added_until_the_commit_are_in_before_the_row(shop: Shop) -> None:
    with a_session(shop) as session:
        transaction = begin(shop, session, new_id())
        order = Order(number=1)
        session.add(order)
        numbers = []

        def write() -> None:
            session.flush()
            numbers.append(order.number)
            transaction.insert_row(NOW_MS)

        transaction.on_before_commit(write)
    assert numbers == [1]
    assert shop.orders() == {1}


def test_a_commit_that_is_refused_is_told_as_rolled_back(postgres_shop: Shop) -> None:
    key = new_id()
    for opened in (a_session, an_engine):
        with pytest.raises(sqlalchemy.exc.IntegrityError), opened(postgres_shop) as db:
            part = Part(begin(postgres_shop, db, key))
            place(db, 1)
            db.execute(
                sqlalchemy.text(
                    "CREATE TEMPORARY TABLE later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
                )
            )
            db.execute(sqlalchemy.text("INSERT INTO later VALUES (1), (1)"))
        assert part.endings == [TransactionEnding.ROLLED_BACK]
    postgres_shop.fence(key)
    assert postgres_shop.orders() == set()


def test_a_session_used_a_thousand_times_does_not_grow(file_shop: Shop) -> None:
    with Session(file_shop.engine()) as session:
        for number in range(20):
            with session.begin():
                part = Part(begin(file_shop, session, new_id()))
                place(session, number)
            assert part.endings == [TransactionEnding.COMMITTED]
        with session.begin():
            place(session, 100)
        assert len(list(session.dispatch.before_commit)) == 1
    assert len(file_shop.outcomes()) == 20
    assert len(file_shop.orders()) == 21


def test_a_connection_used_many_times_does_not_grow(file_shop: Shop) -> None:
    with file_shop.engine().connect() as connection:
        for number in range(20):
            with connection.begin():
                part = Part(begin(file_shop, connection, new_id()))
                place(connection, number)
            assert part.endings == [TransactionEnding.COMMITTED]
        with connection.begin():
            place(connection, 100)
        assert len(list(connection.dispatch.commit)) == 1
    assert len(file_shop.orders()) == 21
