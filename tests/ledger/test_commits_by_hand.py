"""A COMMIT by hand inside a block removes the marks of its messages, and the block must detect it.

Otherwise the order is in the database, and its message counts as rolled back by a savepoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.producer.transaction_steps import TransactionState
from tests.ledger import async_hands
from tests.ledger.async_hands import ASYNC_HANDS, place, run
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import HANDS, Shop, refused

#: When the user commits: before the order and its message, or after them.
every_moment = pytest.mark.parametrize("is_before", [True, False])


@every_moment
@pytest.mark.parametrize("name", HANDS)
async def test_a_commit_by_hand_is_refused_where_it_took_the_marks(
    postgres_shop: Shop, tmp_path: Path, name: str, *, is_before: bool
) -> None:
    async with market(postgres_shop, tmp_path) as there:
        ended: list[Any] = []

        def sell() -> None:
            producer = there.producer()
            with HANDS[name](postgres_shop) as hand:
                with refused("transaction_ended_inside"), producer.transaction(hand.db) as tx:
                    if is_before:
                        hand.execute("COMMIT")
                    tx.send(PAID, b"1")
                    hand.place(1)
                    if not is_before:
                        hand.execute("COMMIT")
                ended.append(tx.state)

        await in_thread(sell)
        assert ended == [TransactionState.ROLLED_BACK]
        assert there.paid() == set()


#: SQLAlchemy does not report the statement, and SQLite has no mark that would show it.
AWAITED = [
    (shop, name)
    for shop in ("file_shop", "postgres_shop", "asyncpg_shop")
    for name in ASYNC_HANDS
    if (shop, name) == ("file_shop", "driver") or shop != "file_shop"
]


@every_moment
@pytest.mark.parametrize(("shop_name", "name"), AWAITED)
async def test_the_same_where_the_database_is_awaited(
    request: pytest.FixtureRequest, tmp_path: Path, shop_name: str, name: str, *, is_before: bool
) -> None:
    shop: Shop = request.getfixturevalue(shop_name)
    opened: async_hands.Opened = ASYNC_HANDS[name]
    async with market(shop, tmp_path) as there, opened(shop) as db:
        producer = there.async_producer()
        with refused("transaction_ended_inside"):
            async with producer.transaction(db) as tx:
                if is_before:
                    await run(db, "COMMIT")
                tx.send(PAID, b"1")
                await place(db, 1)
                if not is_before:
                    await run(db, "COMMIT")
        assert tx.state is TransactionState.ROLLED_BACK
        assert there.paid() == set()
