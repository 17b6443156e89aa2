"""The with block keeps order and messages together, no matter who commits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from escrowmq.client.messages.messages import Message
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.protocol.native.requests import NativeCode
from tests.ledger.market import PAID, id_of, in_thread, market, pay
from tests.ledger.shops import HANDS, Order, Shop, refused


async def test_order_and_message_are_there_together(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with producer.transaction(there.session()) as tx:
                pay(tx, 42)
                assert there.paid() == set()
            assert tx.state is TransactionState.COMMITTED

        await in_thread(sell)
        assert shop.orders() == there.paid() == {42}


@pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
async def test_every_kind_of_session_and_connection_will_do(
    shop: Shop, tmp_path: Path, opened: Any
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                for number in (1, 2):
                    with producer.transaction(hand.db) as tx:
                        hand.place(number)
                        tx.send(PAID, b"%d" % number)

        await in_thread(sell)
        assert shop.orders() == there.paid() == {1, 2}


async def test_an_error_in_the_block_takes_both_back(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with pytest.raises(ZeroDivisionError), producer.transaction(there.session()) as tx:
                pay(tx, 42)
                1 / 0  # noqa: B018
            assert tx.state is TransactionState.ROLLED_BACK

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()
        # The half message had not been sent yet.
        assert there.states() == []


async def test_without_a_message_the_database_just_commits(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with producer.transaction(there.session()) as tx:
                tx.db.add(Order(number=1))
            with Session(there.engine) as session, session.begin():
                with producer.transaction(session):
                    session.add(Order(number=2))
                session.add(Order(number=3))
            # That needed no broker, so the producer has not started.
            assert "started" not in repr(producer)

        await in_thread(sell)
        assert shop.orders() == {1, 2, 3}
        assert shop.outcomes() == {}


async def test_many_messages_and_topics_go_in_one_request_and_become_visible_at_once(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:
        topics = ("order-paid", "points", "cart-emptied")

        def sell() -> None:
            producer = there.producer()
            with producer.transaction(there.session()) as tx:
                tx.db.add(Order(number=1))
                for number in range(30):
                    tx.send(topics[number % 3], b"%d" % number)
                assert len(tx.messages) == 30

        with there.listening() as heard:
            await in_thread(sell)
        assert heard.count(NativeCode.HOLD_MANY) == heard.count(NativeCode.DECIDE_MANY) == 1
        for first, topic in enumerate(topics):
            assert there.paid(topic) == set(range(first, 30, 3))


async def test_a_body_may_be_filled_in_until_the_end(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with producer.transaction(there.session()) as tx:
                first, second = Order(number=17), Order(number=18)
                tx.db.add_all([first, second])
                # The database may assign such an id when the session is flushed.
                tx.send(PAID, lambda: id_of(first))
                message = tx.send(PAID)
                message.body = str(second.number)

        await in_thread(sell)
        assert there.paid() == {17, 18}


async def test_the_callers_commit_takes_the_messages_along(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> list[TransactionState]:
            producer = there.producer()
            states = []
            with Session(there.engine) as session, session.begin():
                with producer.transaction(session) as tx:
                    pay(tx, 1)
                states.append(tx.state)
                assert there.paid() == set()
                session.add(Order(number=2))
            states.append(tx.state)
            with there.engine.begin() as connection:
                with producer.transaction(connection) as tx_2:
                    connection.execute(sqlalchemy.insert(Order).values(number=3))
                    tx_2.send(PAID, b"3")
                states.append(tx_2.state)
            states.append(tx_2.state)
            return states

        states = await in_thread(sell)
        assert states == [TransactionState.OPEN, TransactionState.COMMITTED] * 2
        assert shop.orders() == {1, 2, 3}
        assert there.paid() == {1, 3}


async def test_the_callers_rollback_takes_the_messages_back(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                pytest.raises(ZeroDivisionError),
                Session(there.engine) as session,
                session.begin(),
            ):
                with producer.transaction(session) as tx:
                    pay(tx, 1)
                1 / 0  # noqa: B018
            assert tx.state is TransactionState.ROLLED_BACK

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()


async def test_a_caller_that_catches_the_blocks_error_cannot_commit_half_of_it(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session:
                session.begin()
                with suppress(ZeroDivisionError), producer.transaction(session) as tx:
                    pay(tx, 1)
                    session.flush()
                    1 / 0  # noqa: B018
                with pytest.raises(Exception):  # noqa: B017, PT011 - ours or SQLAlchemy's
                    session.commit()

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()


async def test_every_commit_inside_the_block_is_refused(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                refused("transaction_ended_inside"),
                producer.transaction(there.session()) as tx,
            ):
                pay(tx, 1)
                tx.db.commit()
            with (
                refused("transaction_ended_inside"),
                Session(there.engine) as session,
                session.begin(),
                producer.transaction(session) as tx,
            ):
                pay(tx, 2)
                session.commit()

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()


async def test_promises_that_could_not_be_kept_are_refused_at_once(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            autocommit = shop.engine(isolation_level="AUTOCOMMIT")
            with refused("autocommit_connection"), producer.transaction(Session(autocommit)):
                pass
            with (
                there.session() as session,
                session.begin_nested(),
                refused("savepoint_open"),
                producer.transaction(session),
            ):
                session.add(Order(number=1))
            with refused("producer_without_ledger"):
                there.producer(ledger=None).transaction(there.session())
            block = producer.transaction(there.session())
            with refused("transaction_not_begun"):
                block.send(PAID)
            with block:
                pass
            with refused("transaction_over"):
                block.send(PAID)
            with refused("transaction_over"), block:
                pass
            with refused("body_illegal"), producer.transaction(there.session()) as tx:
                pay(tx, 2)
                tx.send(PAID, 7)
            with refused("body_too_large"), producer.transaction(there.session()) as tx:
                pay(tx, 3)
                tx.send(PAID, b"x" * 5_000_000)
            with refused("message_given_twice"), producer.transaction(there.session()) as tx:
                tx.send(Message(topic=PAID), b"1")

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()
        assert there.states() == []
