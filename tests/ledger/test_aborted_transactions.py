"""PostgreSQL rolls back a transaction in which a statement failed, even at COMMIT.

The drivers do not report it. Even if user code swallows the error, the block must never count it as
a commit.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consume_transaction import ConsumeTransaction
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.transaction.states import State
from tests.ledger.async_hands import ASYNC_HANDS, Opened, begun, place, run
from tests.ledger.async_hands import driver as async_driver
from tests.ledger.deliveries import delivery
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import HANDS, NOW_MS, Shop, begin, driver_hand, new_id, refused

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)


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
        # The send itself is refused, so the broker gets nothing.
        await there.hears()
        assert postgres_shop.orders() == there.paid() == set()


def ended(*, is_sending: bool) -> TransactionState:
    """Return the expected state; a block without messages has no broker to ask."""
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
        await there.hears(*[State.ROLLED_BACK] * is_sending)
        assert async_postgres_shop.orders() == there.paid() == set()


@every_hand
def test_a_statement_that_fails_between_the_row_and_commit_rolls_back(
    postgres_shop: Shop, opened: Any
) -> None:
    """A statement of another thread on the same connection has this effect."""
    with opened(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        with suppress(Exception):
            hand.execute("SELECT 1 / 0")
        with refused("transaction_aborted"):
            transaction.commit()
        # The connection can be used for another transaction.
        key = new_id()
        transaction = begin(postgres_shop, hand.db, key)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == (set(), {key: "committed"})


@every_async_hand
async def test_a_statement_of_another_task_that_fails_before_commit_rolls_back(
    async_postgres_shop: Shop, opened: Opened
) -> None:
    async with opened(async_postgres_shop) as db:
        transaction = await begun(async_postgres_shop, db)
        await place(db, 1)
        await transaction.insert_row(NOW_MS)
        with suppress(Exception):
            await run(db, "SELECT 1 / 0")
        with refused("transaction_aborted"):
            await transaction.commit()
        transaction = await begun(async_postgres_shop, db)
        await transaction.insert_row(NOW_MS)
        await transaction.commit()
    assert async_postgres_shop.orders() == set()
    assert set(async_postgres_shop.outcomes().values()) == {"committed"}


async def test_a_rollback_of_another_task_before_commit_is_not_taken_for_a_commit(
    async_shop: Shop,
) -> None:
    async with async_driver(async_shop) as db:
        transaction = await begun(async_shop, db)
        await place(db, 1)
        await transaction.insert_row(NOW_MS)
        await db.execute("ROLLBACK")
        with refused("commit_unknown"):
            await transaction.commit()
    assert (async_shop.orders(), async_shop.outcomes()) == (set(), {})


def test_a_rollback_of_another_thread_before_commit_is_not_taken_for_a_commit(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, new_id())
        hand.place(1)
        transaction.insert_row(NOW_MS)
        hand.execute("ROLLBACK")
        with refused("commit_unknown"):
            transaction.commit()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@pytest.mark.parametrize("is_callers", [True, False])
async def test_a_listener_that_aborts_the_transaction_after_the_row_rolls_it_back(
    postgres_shop: Shop, tmp_path: Path, *, is_callers: bool
) -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK, and the drivers report no error."""
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
        await there.hears(State.ROLLED_BACK)
        await there.agrees(set())
