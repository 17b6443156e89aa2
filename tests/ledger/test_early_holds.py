"""tx.hold(): messages are held before the first write, and still follow the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import State
from tests.ledger.async_hands import driver, place
from tests.ledger.market import PAID, in_thread, market, pay
from tests.ledger.shops import HANDS, Order, Shop, refused
from tests.unit.broker.wire import eventually


@pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
async def test_messages_are_durable_before_the_first_write_and_visible_after_commit(
    shop: Shop, tmp_path: Path, opened: Any
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                with producer.transaction(hand.db) as tx:
                    tx.send(PAID, b"1")
                    tx.hold()
                    assert there.states() == [State.PREPARED]
                    hand.place(1)
                    # A second call has nothing left to do.
                    tx.hold()
                    assert there.paid() == set()
                assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        assert shop.orders() == there.paid() == {1}
        assert there.states() == [State.COMMITTED]


async def test_an_error_after_it_takes_both_back(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with pytest.raises(ZeroDivisionError), producer.transaction(there.session()) as tx:
                tx.send(PAID, b"42")
                tx.hold()
                tx.db.add(Order(number=42))
                1 / 0  # noqa: B018
            assert tx.state is TransactionState.ROLLED_BACK

        await in_thread(sell)
        await eventually(lambda: there.states() == [State.ROLLED_BACK])
        assert shop.orders() == there.paid() == set()


async def test_it_works_where_the_caller_commits(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def caller_commits(number: int, *, is_kept: bool) -> None:
            with Session(there.engine) as session:
                session.begin()
                with there.producer().transaction(session) as tx:
                    tx.send(PAID, b"%d" % number)
                    tx.hold()
                    session.add(Order(number=number))
                assert tx.state is TransactionState.OPEN
                session.commit() if is_kept else session.rollback()

        await in_thread(lambda: caller_commits(1, is_kept=True))
        await in_thread(lambda: caller_commits(2, is_kept=False))
        await eventually(lambda: there.undecided() == [])
        assert shop.orders() == there.paid() == {1}


async def test_no_message_may_follow_it(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            with there.producer().transaction(there.session()) as tx:
                # Without a message it does nothing, and messages may follow.
                tx.hold()
                pay(tx, 1)
                tx.hold()
                with refused("messages_held"):
                    tx.send(PAID, b"2")
            with refused("transaction_over"):
                tx.hold()

        await in_thread(sell)
        assert shop.orders() == there.paid() == {1}


async def test_a_block_whose_hold_failed_cannot_commit_even_if_the_error_is_caught(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(timeout_s=0.5)
            with pytest.raises(Unavailable), producer.transaction(there.session()) as tx:
                tx.send(PAID, b"1")
                with pytest.raises(Unavailable):
                    tx.hold()
                with pytest.raises(Unavailable):
                    tx.hold()
                with refused("messages_held"):
                    tx.send(PAID, b"2")
                tx.db.add(Order(number=1))
            assert tx.state is TransactionState.ROLLED_BACK

        with there.unanswered(NativeCode.HOLD_MANY):
            await in_thread(sell)
        assert shop.orders() == there.paid() == set()


async def test_a_savepoint_cannot_take_back_what_is_held(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def inside_of_a_savepoint() -> None:
            with there.producer().transaction(there.session()) as tx:
                with tx.db.begin_nested():
                    pay(tx, 1)
                    with refused("savepoint_open"):
                        tx.hold()
                tx.hold()

        def behind_our_back() -> None:
            with (
                HANDS["driver"](shop) as hand,
                pytest.raises(RequestRefused, match="transaction_ended_inside"),
                there.producer().transaction(hand.db) as tx,
            ):
                hand.execute("SAVEPOINT mine")
                tx.send(PAID, b"2")
                tx.hold()
                hand.execute("ROLLBACK TO SAVEPOINT mine")
                hand.place(2)

        await in_thread(inside_of_a_savepoint)
        await in_thread(behind_our_back)
        await eventually(lambda: there.undecided() == [])
        assert shop.orders() == there.paid() == {1}


async def test_it_is_awaited_in_an_async_block(async_shop: Shop, tmp_path: Path) -> None:
    engine = async_shop.async_engine()
    async with market(async_shop, tmp_path) as there:
        producer = there.async_producer()
        async with producer.transaction(AsyncSession(engine)) as tx:
            tx.send(PAID, b"1")
            await tx.hold()
            assert there.states() == [State.PREPARED]
            tx.db.add(Order(number=1))
            with refused("messages_held"):
                tx.send(PAID, b"2")
        assert tx.state is TransactionState.COMMITTED
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(AsyncSession(engine)) as tx:
                tx.send(PAID, b"2")
                await tx.hold()
                tx.db.add(Order(number=2))
                await tx.db.flush()
                1 / 0  # noqa: B018
        await eventually(lambda: there.undecided() == [])
        assert async_shop.orders() == there.paid() == {1}
    await engine.dispose()


async def test_a_drivers_own_awaited_connection_marks_what_was_held(
    async_shop: Shop, tmp_path: Path
) -> None:
    async with market(async_shop, tmp_path) as there, driver(async_shop) as db:
        producer = there.async_producer()
        # Once with a later statement, which writes the mark, and once without.
        async with producer.transaction(db) as tx:
            tx.send(PAID, b"1")
            await tx.hold()
            await place(db, 1)
        async with producer.transaction(db) as tx:
            await place(db, 2)
            tx.send(PAID, b"2")
            await tx.hold()
        assert async_shop.orders() == there.paid() == {1, 2}


async def test_a_message_before_the_first_write_leaves_sqlite_free_for_other_writers(
    file_shop: Shop, tmp_path: Path
) -> None:
    """A mark that read the main database would pin a snapshot, and the write would be refused."""
    file_shop.run("PRAGMA journal_mode = WAL")
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS["driver"](file_shop) as first, HANDS["driver"](file_shop) as second:
                with producer.transaction(first.db) as tx:
                    tx.send(PAID, b"1")
                    tx.hold()
                    with producer.transaction(second.db) as other:
                        second.place(2)
                        other.send(PAID, b"2")
                    first.place(1)
                assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        assert file_shop.orders() == there.paid() == {1, 2}
