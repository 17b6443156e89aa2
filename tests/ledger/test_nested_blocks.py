"""A connection takes part in one block at a time: the inner COMMIT would commit the outer rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.model.errors import EscrowError
from tests.ledger import async_hands
from tests.ledger.async_hands import ASYNC_HANDS, every_async_shop, place
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import HANDS, Hand, Shop, refused

Opened = Callable[..., AbstractContextManager[Hand]]

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)

consumer = Consumer("127.0.0.1:9876", group="shipping")
async_consumer = AsyncConsumer("127.0.0.1:9876", group="shipping")


@every_hand
async def test_a_block_inside_a_block_is_refused_and_the_outer_one_goes_on(
    shop: Shop, tmp_path: Path, opened: Opened
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                with producer.transaction(hand.db) as tx:
                    hand.place(1)
                    tx.send(PAID, b"1")
                    with refused("block_already_open"), producer.transaction(hand.db):
                        pytest.fail("its commit would be the outer block's")
                    hand.place(2)
                    tx.send(PAID, b"2")
                # When the outer block has ended, the connection is free again.
                with producer.transaction(hand.db) as tx:
                    hand.place(3)
                    tx.send(PAID, b"3")

        await in_thread(sell)
        await there.agrees({1, 2, 3})


@every_hand
async def test_an_inner_block_cannot_commit_the_rows_of_an_outer_one_that_fails(
    shop: Shop, tmp_path: Path, opened: Opened
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                with suppress(EscrowError), producer.transaction(hand.db) as tx:
                    hand.place(1)
                    tx.send(PAID, b"1")
                    with producer.transaction(hand.db) as inner:
                        hand.place(2)
                        inner.send(PAID, b"2")
                with producer.transaction(hand.db) as tx:
                    hand.place(3)
                    tx.send(PAID, b"3")

        await in_thread(sell)
        await there.agrees({3})


@every_hand
async def test_a_consumers_block_and_a_producers_do_not_nest(
    shop: Shop, tmp_path: Path, opened: Opened
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                with consumer.transaction(hand.db, delivery("m-1")):
                    hand.place(1)
                    with refused("block_already_open"), producer.transaction(hand.db):
                        pytest.fail("its commit would be the consumer's")
                with producer.transaction(hand.db) as tx:
                    tx.send(PAID, b"1")
                    hand.place(2)
                    tx.send(PAID, b"2")
                    again = consumer.transaction(hand.db, delivery("m-2"))
                    with refused("block_already_open"), again:
                        pytest.fail("its commit would be the producer's")
                with consumer.transaction(hand.db, delivery("m-3")):
                    pass

        await in_thread(sell)
        await there.agrees({1, 2})
        assert consumed(shop) == {"m-1", "m-3"}


@every_async_shop
@every_async_hand
async def test_blocks_that_are_awaited_do_not_nest(
    shop: Shop, tmp_path: Path, opened: async_hands.Opened
) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        async with opened(shop) as db:
            async with producer.transaction(db) as tx:
                await place(db, 1)
                tx.send(PAID, b"1")
                for inner in (
                    producer.transaction(db),
                    async_consumer.transaction(db, delivery("m-1")),
                ):
                    with refused("block_already_open"):
                        await inner.__aenter__()
            async with async_consumer.transaction(db, delivery("m-2")):
                await place(db, 2)
                with refused("block_already_open"):
                    await producer.transaction(db).__aenter__()
            async with producer.transaction(db) as tx:
                tx.send(PAID, b"2")
        await there.agrees({1, 2})
        assert consumed(shop) == {"m-2"}


@pytest.mark.parametrize("outer", ["session", "connection"])
async def test_the_drivers_connection_below_sqlalchemy_is_in_the_same_block(
    shop: Shop, tmp_path: Path, outer: str
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS[outer](shop) as hand:
                db: Any = hand.db.connection() if outer == "session" else hand.db
                below = db.connection.driver_connection
                with producer.transaction(hand.db) as tx:
                    hand.place(1)
                    tx.send(PAID, b"1")
                    with refused("block_already_open"), producer.transaction(below):
                        pytest.fail("it is one connection")

        await in_thread(sell)
        await there.agrees({1})


@every_hand
def test_a_block_that_could_not_begin_leaves_the_connection_free(
    shop: Shop, opened: Opened
) -> None:
    with opened(shop) as hand:
        with refused("message_not_recordable"), consumer.transaction(hand.db, delivery("")):
            pytest.fail("it has no id")
        with consumer.transaction(hand.db, delivery("m-1")):
            hand.place(1)
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})
