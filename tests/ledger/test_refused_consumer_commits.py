"""The database refuses the COMMIT of a consumer's block, and the message is redelivered."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consume_transaction import ConsumeTransaction
from tests.ledger.async_hands import ASYNC_HANDS, Opened, place, run
from tests.ledger.deferred import (
    FOREIGN,
    INTEGRITY,
    always_look_at_foreign_keys,
    look_at_foreign_keys,
)
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.shops import HANDS, Shop

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)


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


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_refused_commit_of_the_callers_leaves_the_message_unconsumed(
    deferring: Shop, kind: str
) -> None:
    engine = deferring.engine()
    always_look_at_foreign_keys(deferring, engine)
    opened: Any = Session(engine) if kind == "session" else engine.connect()
    with opened as db:
        with (
            pytest.raises(sqlalchemy.exc.IntegrityError),
            db.begin(),
            ConsumeTransaction("group", db, delivery()),
        ):
            db.execute(sqlalchemy.text(FOREIGN))
        assert consumed(deferring) == set()
        with db.begin(), ConsumeTransaction("group", db, delivery()):
            db.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
    assert (consumed(deferring), deferring.orders()) == ({"m-1"}, {1})


async def test_a_refused_commit_of_an_awaited_callers_leaves_the_message_unconsumed(
    async_deferring: Shop,
) -> None:
    engine = async_deferring.async_engine()
    always_look_at_foreign_keys(async_deferring, engine.sync_engine)
    async with AsyncSession(engine) as db:
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            async with db.begin(), ConsumeTransaction("group", db, delivery()):
                await run(db, FOREIGN)
        assert consumed(async_deferring) == set()
        async with db.begin(), ConsumeTransaction("group", db, delivery()):
            await place(db, 1)
    assert (consumed(async_deferring), async_deferring.orders()) == ({"m-1"}, {1})
