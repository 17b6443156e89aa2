"""A handler's effect and its message in one transaction: every hand, both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.handling import AlreadyConsumed
from tests.ledger import async_hands
from tests.ledger.async_hands import ASYNC_HANDS, place
from tests.ledger.deliveries import TOPIC, consumed, delivery
from tests.ledger.shops import HANDS, Hand, Order, Shop, driver_hand, refused

Opened = Callable[..., AbstractContextManager[Hand]]

every_hand = pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
every_async_hand = pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)

consumer = Consumer("127.0.0.1:9876", group="shipping")
others = AsyncConsumer("127.0.0.1:9876", group="points")


def known() -> AbstractContextManager[Any]:
    return pytest.raises(AlreadyConsumed, match="m-1")


def failing() -> AbstractContextManager[Any]:
    return pytest.raises(ValueError, match="not now")


@every_hand
def test_effect_and_message_are_committed_together(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        with consumer.transaction(hand.db, delivery()) as tx:
            assert tx.db is hand.db
            hand.place(1)
            assert shop.kind == "sqlite" or consumed(shop) == set()
        assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


@every_hand
def test_a_redelivery_is_recognised_before_its_effect(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        with consumer.transaction(hand.db, delivery()):
            hand.place(1)
        for _ in range(2):
            with known(), consumer.transaction(hand.db, delivery()):
                pytest.fail("its effect is there")
        # The connection can be used for the next message.
        with consumer.transaction(hand.db, delivery("m-2")):
            hand.place(2)
    assert (shop.orders(), consumed(shop)) == ({1, 2}, {"m-1", "m-2"})


@every_hand
def test_an_effect_that_fails_leaves_nothing_and_may_be_tried_again(
    shop: Shop, opened: Opened
) -> None:
    with opened(shop) as hand:
        with failing(), consumer.transaction(hand.db, delivery()):
            hand.place(1)
            raise ValueError("not now")
        assert (shop.orders(), consumed(shop)) == (set(), set())
        with consumer.transaction(hand.db, delivery()):
            hand.place(1)
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


@every_async_hand
async def test_the_same_where_the_database_is_awaited(
    shop: Shop, opened: async_hands.Opened
) -> None:
    async with opened(shop) as db:
        with failing():
            async with others.transaction(db, delivery()):
                await place(db, 1)
                raise ValueError("not now")
        async with others.transaction(db, delivery()) as tx:
            await place(tx.db, 1)
        with known():
            async with others.transaction(db, delivery()):
                pytest.fail("its effect is there")
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


@every_hand
def test_the_same_id_with_another_body_is_an_error(shop: Shop, opened: Opened) -> None:
    with opened(shop) as hand:
        with consumer.transaction(hand.db, delivery(body=b"1")):
            hand.place(1)
        with refused("message_differs"), consumer.transaction(hand.db, delivery(body=b"2")):
            pytest.fail("it is not the same message")
    assert shop.orders() == {1}


def test_each_group_and_each_topic_has_its_own_effect(shop: Shop) -> None:
    points = Consumer("127.0.0.1:9876", group="points")
    with driver_hand(shop) as hand:
        for number, (group, topic) in enumerate(
            [(consumer, TOPIC), (points, TOPIC), (consumer, "order-sent")]
        ):
            with group.transaction(hand.db, delivery(topic=topic)):
                hand.place(number)
    assert shop.orders() == {0, 1, 2}


def test_of_two_deliveries_at_a_time_the_second_waits_for_the_first(postgres_shop: Shop) -> None:
    entered, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with driver_hand(postgres_shop) as hand, consumer.transaction(hand.db, delivery()):
            hand.place(1)
            entered.set()
            may_end.wait(10)

    def second() -> None:
        with driver_hand(postgres_shop) as hand, consumer.transaction(hand.db, delivery()):
            pytest.fail("its effect is there")

    with ThreadPoolExecutor(2) as threads:
        winning = threads.submit(first)
        assert entered.wait(10)
        losing = threads.submit(second)
        assert not losing.done()
        may_end.set()
        winning.result(10)
        with known():
            losing.result(10)


def test_a_second_delivery_goes_on_if_the_first_rolls_back(postgres_shop: Shop) -> None:
    with driver_hand(postgres_shop) as one, driver_hand(postgres_shop) as two:
        waiting: list[Any] = []
        with ThreadPoolExecutor(1) as threads:

            def again() -> None:
                with consumer.transaction(two.db, delivery()):
                    two.place(2)

            with failing(), consumer.transaction(one.db, delivery()):
                one.place(1)
                waiting.append(threads.submit(again))
                raise ValueError("not now")
            waiting[0].result(10)
    assert (postgres_shop.orders(), consumed(postgres_shop)) == ({2}, {"m-1"})


def test_where_sqlite_is_locked_the_delivery_comes_again(file_shop: Shop) -> None:
    with driver_hand(file_shop) as one, driver_hand(file_shop, timeout=0.01) as two:
        with consumer.transaction(one.db, delivery()):
            one.place(1)
            with refused("message_not_recorded"), consumer.transaction(two.db, delivery()):
                pytest.fail("the first has not ended")
        with known(), consumer.transaction(two.db, delivery()):
            pytest.fail("its effect is there")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_redelivery_is_recognised_at_every_isolation_level(
    postgres_shop: Shop, level: str
) -> None:
    engine = postgres_shop.engine(isolation_level=level)
    with Session(engine) as session, consumer.transaction(session, delivery()):
        session.add(Order(number=1))
    with Session(engine) as session, known(), consumer.transaction(session, delivery()):
        pytest.fail("its effect is there")


async def test_old_consumed_rows_can_be_forgotten(shop: Shop) -> None:
    with driver_hand(shop) as hand:
        for key in ("m-1", "m-2", "m-3"):
            with consumer.transaction(hand.db, delivery(key)):
                pass
    shop.run("UPDATE escrowmq_consumed SET consumed_at_ms = 10 WHERE message_id = 'm-1'")
    shop.run("UPDATE escrowmq_consumed SET consumed_at_ms = 20 WHERE message_id = 'm-2'")
    assert shop.ledger().forget_consumed(before_ms=20) == 1
    assert consumed(shop) == {"m-2", "m-3"}
    assert await shop.ledger().forget_consumed_async(before_ms=21) == 1
    assert consumed(shop) == {"m-3"}


# Where the caller's own block commits.


def test_a_callers_block_commits_effect_and_message(shop: Shop) -> None:
    with Session(shop.engine()) as session, session.begin():
        with consumer.transaction(session, delivery()):
            session.add(Order(number=1))
        session.add(Order(number=2))
    assert (shop.orders(), consumed(shop)) == ({1, 2}, {"m-1"})


def test_a_redelivery_ends_a_callers_block(shop: Shop) -> None:
    engine = shop.engine()
    with Session(engine) as session, consumer.transaction(session, delivery()):
        session.add(Order(number=1))
    with Session(engine) as session:
        with known(), session.begin(), consumer.transaction(session, delivery()):
            pytest.fail("its effect is there")
        with session.begin(), consumer.transaction(session, delivery("m-2")):
            session.add(Order(number=2))
    with (
        engine.connect() as connection,
        known(),
        connection.begin(),
        consumer.transaction(connection, delivery()),
    ):
        pytest.fail("its effect is there")
    assert shop.orders() == {1, 2}


async def test_an_awaited_callers_block_commits_effect_and_message(shop: Shop) -> None:
    async with async_hands.session(shop) as session:
        async with session.begin(), others.transaction(session, delivery()):
            session.add(Order(number=1))
        with known():
            async with session.begin(), others.transaction(session, delivery()):
                pytest.fail("its effect is there")
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


def test_a_failed_block_cannot_be_committed_by_its_caller(shop: Shop) -> None:
    with (
        Session(shop.engine()) as session,
        pytest.raises(Exception, match=r"(?i)poisoned|roll"),
        session.begin(),
    ):
        with failing(), consumer.transaction(session, delivery()):
            session.add(Order(number=1))
            session.flush()
            raise ValueError("not now")
        session.add(Order(number=2))
    assert (shop.orders(), consumed(shop)) == (set(), set())


# Uses that break the promise.


@every_hand
def test_a_commit_inside_the_block_is_never_taken_for_the_whole_effect(
    shop: Shop, opened: Opened
) -> None:
    with opened(shop) as hand:
        commit = next(iter(hand.commits.values()))
        with refused("transaction_ended_inside"), consumer.transaction(hand.db, delivery()):
            hand.place(1)
            commit()
    assert consumed(shop) == set()
    with opened(shop) as hand:
        if shop.orders():
            # sqlite3 has no hook, so half the effect is there, and the redelivery reports it.
            with refused("consumed_in_part"), consumer.transaction(hand.db, delivery()):
                pytest.fail("the missing part is unknown")
        else:
            with consumer.transaction(hand.db, delivery()):
                hand.place(1)


def test_unusable_deliveries_and_databases_are_refused_at_once(shop: Shop) -> None:
    with driver_hand(shop) as hand, refused("no_message"):
        consumer.transaction(hand.db)
    with refused("database_unsupported"), consumer.transaction(object(), delivery()):
        pytest.fail("it is no database")
    with driver_hand(shop) as hand:
        nameless = delivery(message_id="")
        with refused("message_not_recordable"), consumer.transaction(hand.db, nameless):
            pytest.fail("it could not be found again")
    shop.run("DROP TABLE escrowmq_consumed")
    try:
        with (
            driver_hand(shop) as hand,
            refused("ledger_missing"),
            consumer.transaction(hand.db, delivery()),
        ):
            pytest.fail("there is nowhere to record it")
    finally:
        shop.ledger().create()


def test_a_connection_that_commits_by_itself_is_refused(postgres_shop: Shop) -> None:
    with (
        driver_hand(postgres_shop, autocommit=True) as hand,
        refused("autocommit_connection"),
        consumer.transaction(hand.db, delivery()),
    ):
        pytest.fail("its effect could not be taken back")
    engine = postgres_shop.engine(isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        refused("autocommit_connection"),
        consumer.transaction(connection, delivery()),
    ):
        pytest.fail("its effect could not be taken back")
    with Session(postgres_shop.engine()) as session:
        session.execute(sqlalchemy.text("SET TRANSACTION READ ONLY"))
        with refused("read_only_transaction"), consumer.transaction(session, delivery()):
            pytest.fail("it cannot be recorded")
