"""What a block refuses at once, and what it accepts: savepoints, autocommit, other databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.shops import (
    COMMITTED,
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
    overdue,
    refused,
    session_hand,
    sqlite_shop,
)

Opened = Callable[..., AbstractContextManager[Hand]]

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_a_block_inside_a_savepoint_is_refused_at_once(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand, hand.db.begin_nested(), refused("savepoint_open"):
        begin(shop, hand.db, new_id())


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_savepoints_inside_the_block_are_fine_but_not_for_messages(
    shop: Shop, opened: Opened
) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        transaction.check_outermost()
        with hand.db.begin_nested():
            hand.place(2)
            with refused("savepoint_open"):
                transaction.check_outermost()
        with suppress(KeyError), hand.db.begin_nested():
            hand.place(3)
            raise KeyError
        transaction.insert_row(NOW_MS)
        transaction.commit()
    # Python's sqlite3 begins no transaction for a savepoint, which its users must know.
    assert shop.orders() == {1, 2}
    assert list(shop.outcomes().values()) == ["committed"]


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_a_row_inside_a_savepoint_is_refused(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        hand.db.begin_nested()
        with refused("savepoint_open"):
            transaction.insert_row(NOW_MS)
        with pytest.raises(Exception):  # noqa: B017, PT011
            hand.db.commit()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@pytest.mark.parametrize(
    ("opened", "options"),
    [
        (session_hand, {"isolation_level": "AUTOCOMMIT"}),
        (connection_hand, {"isolation_level": "AUTOCOMMIT"}),
        (driver_hand, None),
    ],
)
def test_autocommit_is_refused_at_once(
    shop: Shop, opened: Opened, options: dict[str, Any] | None
) -> None:
    if options is None:
        options = {"isolation_level": None} if shop.kind == "sqlite" else {"autocommit": True}
    with opened(shop, **options) as hand, refused("autocommit_connection"):
        begin(shop, hand.db, new_id())


def test_a_transaction_begun_by_hand_is_one(file_shop: Shop) -> None:
    with driver_hand(file_shop, isolation_level=None) as hand:
        hand.execute("BEGIN IMMEDIATE")
        transaction = begin(file_shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert file_shop.orders() == {1}


def test_the_recipe_for_real_transactions_in_sqlite_works(file_shop: Shop) -> None:
    engine = file_shop.engine()

    @sqlalchemy.event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def _began(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    ledger = SqlLedger(engine)
    key, late = new_id(), new_id()
    with Session(engine) as session:
        transaction = ledger.transaction(session, transaction_id=key, producer_group=GROUP)
        transaction.begin(NOW_MS)
        session.add(Order(number=1))
        transaction.insert_row(NOW_MS)
        transaction.commit()
    found = ledger.resolve([overdue(key), overdue(late)], ledger_uuid=ledger.uuid(), now_ms=NOW_MS)
    assert found[key] == COMMITTED
    assert file_shop.outcomes() == {key: "committed", late: "rolled_back"}


def test_a_read_only_transaction_is_refused_at_once(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        hand.execute(
            "PRAGMA query_only = ON" if shop.kind == "sqlite" else "SET TRANSACTION READ ONLY"
        )
        with refused("read_only_transaction"):
            begin(shop, hand.db, new_id())


def test_a_transaction_that_becomes_read_only_is_refused_in_the_end(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.execute(
            "PRAGMA query_only = ON" if shop.kind == "sqlite" else "SET TRANSACTION READ ONLY"
        )
        with refused("read_only_transaction"):
            transaction.insert_row(NOW_MS)


@every_hand
def test_another_database_is_refused_at_once(shop: Shop, opened: Opened, tmp_path: Path) -> None:
    other = sqlite_shop(tmp_path, "other.db")
    with opened(other) as hand:
        transaction = shop.ledger().transaction(
            hand.db, transaction_id=new_id(), producer_group=GROUP
        )
        with refused("ledger_differs"):
            transaction.begin(NOW_MS)
    other.close()


def test_a_ledger_that_was_changed_inside_the_block_is_refused(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        hand.execute("UPDATE escrowmq_ledger_id SET ledger_uuid = 'other'")
        with refused("ledger_differs"):
            transaction.insert_row(NOW_MS)
    assert shop.orders() == set()


@every_hand
def test_a_database_without_a_ledger_is_refused_at_once(
    file_shop: Shop, opened: Opened, tmp_path: Path
) -> None:
    bare = Shop(kind="sqlite", url=f"sqlite:///{tmp_path / 'bare.db'}")
    with opened(bare) as hand:
        transaction = file_shop.ledger().transaction(
            hand.db, transaction_id=new_id(), producer_group=GROUP
        )
        with refused("ledger_missing"):
            transaction.begin(NOW_MS)
    bare.close()


def test_psycopgs_own_block_is_refused_at_once(postgres_shop: Shop) -> None:
    with (
        driver_hand(postgres_shop) as hand,
        hand.db.transaction(),
        refused("commit_not_ours"),
    ):
        begin(postgres_shop, hand.db, new_id())


def test_psycopgs_blocks_inside_ours_are_savepoints(postgres_shop: Shop) -> None:
    with driver_hand(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        with hand.db.transaction():
            hand.place(1)
        assert postgres_shop.orders() == set()
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert postgres_shop.orders() == {1}


def test_sessions_whose_commit_is_not_one_are_refused(shop: Shop) -> None:
    engine = shop.engine()
    with engine.connect() as connection, Session(connection) as session, refused("commit_not_ours"):
        begin(shop, session, new_id())
    with Session(engine, twophase=True) as session, refused("commit_not_ours"):
        begin(shop, session, new_id())


def test_a_two_phase_connection_is_refused(postgres_shop: Shop) -> None:
    with postgres_shop.engine().connect() as connection:
        connection.begin_twophase()
        with refused("commit_not_ours"):
            begin(postgres_shop, connection, new_id())


@pytest.mark.parametrize("name", ["", "x" * 256, "nul\0"])
def test_names_that_no_check_could_find_are_refused(shop: Shop, name: str) -> None:
    with driver_hand(shop) as hand:
        for key, group in ((name, GROUP), (new_id(), name)):
            transaction = shop.ledger().transaction(
                hand.db, transaction_id=key, producer_group=group
            )
            with refused("ledger_name_illegal"):
                transaction.begin(NOW_MS)


def test_the_longest_names_are_kept_whole(shop: Shop) -> None:
    key, group = "x" * 255, "y" * 255
    with driver_hand(shop) as hand:
        transaction = shop.ledger().transaction(hand.db, transaction_id=key, producer_group=group)
        transaction.begin(NOW_MS)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert shop.settle(overdue(key, group=group)) == {key: COMMITTED}


def test_an_object_that_is_no_connection_is_refused(shop: Shop) -> None:
    for thing in (object(), shop.engine(), "sqlite://", None):
        with refused("database_unsupported"):
            begin(shop, thing, new_id())


@pytest.mark.parametrize("opened", [session_hand, connection_hand])
def test_one_block_at_a_time(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        with refused("block_already_open"):
            begin(shop, hand.db, new_id())
        transaction.rollback()


def test_a_scoped_session_is_a_session(shop: Shop) -> None:
    scoped = scoped_session(sessionmaker(shop.engine()))
    transaction = begin(shop, scoped, new_id())
    scoped.add(Order(number=1))
    transaction.insert_row(NOW_MS)
    transaction.commit()
    scoped.remove()
    assert shop.orders() == {1}


@every_hand
def test_rows_are_read_whatever_the_users_row_factory(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        if opened is driver_hand:
            hand.db.row_factory = (
                sqlite3.Row if shop.kind == "sqlite" else __import__("psycopg").rows.dict_row
            )
        transaction = begin(shop, hand.db, new_id())
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert list(shop.outcomes().values()) == ["committed"]


@pytest.mark.parametrize("wall_ms", [0, 61_000])
def test_a_block_that_lasted_too_long_may_not_write_its_row(
    shop: Shop, wall_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SqlLedger(shop.url, max_duration_ms=60_000)
    with driver_hand(shop) as hand:
        transaction = ledger.transaction(hand.db, transaction_id=new_id(), producer_group=GROUP)
        transaction.begin(NOW_MS)
        hand.place(1)
        if not wall_ms:
            # The monotonic clock went on while the wall clock was set back.
            block: Any = transaction._block  # type: ignore[attr-defined]
            later_s = block._monotonic_s() + 61.0
            monkeypatch.setattr(block, "_monotonic_s", lambda: later_s)
        with refused("transaction_too_slow"):
            transaction.insert_row(NOW_MS + wall_ms)
    assert (shop.orders(), shop.outcomes()) == (set(), {})


def test_an_async_engine_must_be_awaited(shop: Shop) -> None:
    ledger = SqlLedger(shop.async_engine())
    for call in (
        ledger.uuid,
        ledger.create,
        lambda: ledger.look_up([], ledger_uuid=""),
        lambda: ledger.resolve([], ledger_uuid="", now_ms=0),
        lambda: ledger.sweep(lambda _ids: Confirmed({}, ())),
    ):
        with refused("ledger_needs_await"):
            call()
