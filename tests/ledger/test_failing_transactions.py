"""Failures inside the with block: order and messages always agree in the end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import State
from tests.ledger.market import Market, in_thread, market, pay
from tests.ledger.shops import Shop, refused
from tests.unit.broker.wire import eventually
from tests.unit.logged import events


async def test_a_refusal_of_the_broker_rolls_the_database_back(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with refused("topic_illegal"), producer.transaction(there.session()) as tx:
                pay(tx, 1)
                tx.send("no blanks, please")

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()


async def test_if_it_is_not_known_whether_the_halves_are_held_all_is_rolled_back(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(timeout_s=0.3)
            producer.start()
            with (
                pytest.raises(Unavailable, match="hold_unanswered"),
                producer.transaction(there.session()) as tx,
            ):
                pay(tx, 1)
            assert tx.state is TransactionState.ROLLED_BACK

        with there.unanswered(NativeCode.HOLD_MANY):
            await in_thread(sell)
        await there.agrees(set())


async def test_a_decision_that_is_lost_after_commit_is_no_error_and_made_up_for_by_the_check(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(timeout_s=0.3)
            producer.start()
            with producer.transaction(there.session()) as tx:
                pay(tx, 1)
            assert tx.state is TransactionState.COMMITTED_UNTOLD

        with there.unanswered(NativeCode.DECIDE_MANY):
            await in_thread(sell)
        assert "commit_untold" in events(caplog)
        assert shop.orders() == {1}
        assert there.paid() == set()
        await there.agrees({1})


@pytest.mark.parametrize("is_committed", [True, False])
async def test_ctrl_c_during_commit_is_left_to_the_check(
    shop: Shop, tmp_path: Path, *, is_committed: bool
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                pytest.raises(OutcomeUnknown, match="commit_unknown"),
                producer.transaction(there.session()) as tx,
            ):
                pay(tx, 1)
                interrupt_commit(tx, is_committed=is_committed)
            assert tx.state is TransactionState.UNKNOWN

        await in_thread(sell)
        assert there.states() == [State.PREPARED]
        await there.agrees({1} if is_committed else set())


def interrupt_commit(tx: Any, *, is_committed: bool) -> None:
    connection = tx._database._connection
    commit = connection.commit

    def interrupted() -> None:
        if is_committed:
            commit()
        raise KeyboardInterrupt

    connection.commit = interrupted


async def test_a_commit_that_the_database_refuses_rolls_the_messages_back(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run(
        "CREATE TABLE IF NOT EXISTS items (number integer PRIMARY KEY, of integer"
        " REFERENCES orders (number) DEFERRABLE INITIALLY DEFERRED)"
    )
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            session = there.session()
            if shop.kind == "sqlite":
                session.connection().exec_driver_sql("PRAGMA foreign_keys = on")
            with (
                pytest.raises(sqlalchemy.exc.IntegrityError),
                producer.transaction(session) as tx,
            ):
                pay(tx, 1)
                tx.db.execute(sqlalchemy.text("INSERT INTO items VALUES (1, 99)"))

        await in_thread(sell)
        await there.agrees(set())
    shop.run("DROP TABLE items")


async def test_a_fenced_block_rolls_back_and_its_message_never_comes(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session:
                with refused("transaction_fenced"), producer.transaction(session) as tx:
                    # A check has found that the transaction took too long.
                    shop.fence(tx.transaction_id)
                    pay(tx, 1)
                assert tx.state is TransactionState.ROLLED_BACK
                with suppress(Exception):
                    session.commit()

        await in_thread(sell)
        await eventually(lambda: there.states() == [State.ROLLED_BACK])
        assert shop.orders() == there.paid() == set()


async def test_a_database_that_goes_away_in_the_block_takes_the_messages_with_it(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                pytest.raises(sqlalchemy.exc.OperationalError),
                producer.transaction(there.session()) as tx,
            ):
                pay(tx, 1)
                break_all(postgres_shop)
            # The next transaction gets a new connection.
            there.engine.dispose()
            with producer.transaction(there.session()) as tx:
                pay(tx, 2)

        await in_thread(sell)
        assert postgres_shop.orders() == there.paid() == {2}


def break_all(shop: Shop) -> None:
    shop.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


async def test_a_broker_that_is_away_costs_nothing_but_the_error(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.producer(timeout_s=0.2)
        name_port, port = (
            int(address.rpartition(":")[2])
            for address in (there.server.name_address, there.server.broker_address)
        )

    def sell(number: int) -> None:
        with Session(shop.engine()) as session, producer.transaction(session) as tx:
            pay(tx, number)

    with pytest.raises(Unavailable, match="client_closed"):
        await in_thread(lambda: sell(1))
    producer = Market(shop, there.server).producer(timeout_s=0.2)
    with pytest.raises(Unavailable, match="name_server_unreachable"):
        await in_thread(lambda: sell(1))
    assert shop.orders() == set()
    ports = {"name_port": name_port, "port": port}
    async with market(shop, tmp_path, broker=ports) as there:
        await in_thread(lambda: sell(2))
        assert shop.orders() == there.paid() == {2}
        await in_thread(producer.close)


async def test_a_wrong_ledger_is_refused_before_anything_is_done(
    file_shop: Shop, postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(ledger=postgres_shop.ledger())
            with (
                pytest.raises(RequestRefused, match="ledger_differs"),
                producer.transaction(there.session()),
            ):
                pass

        await in_thread(sell)


async def test_a_broker_that_is_restarted_in_the_middle_of_a_block_is_waited_for(
    shop: Shop, tmp_path: Path
) -> None:
    is_down, is_up = threading.Event(), threading.Event()
    async with market(shop, tmp_path) as there:
        producer = Market(shop, there.server).producer()
        ports = {
            name: int(address.rpartition(":")[2])
            for name, address in (
                ("name_port", there.server.name_address),
                ("port", there.server.broker_address),
            )
        }

        def sell() -> None:
            producer.start()
            with Session(shop.engine()) as session, producer.transaction(session) as tx:
                is_up.set()
                assert is_down.wait(20)
                pay(tx, 1)
            assert tx.state is TransactionState.COMMITTED

        selling = asyncio.ensure_future(in_thread(sell))
        await in_thread(lambda: is_up.wait(20))
    is_down.set()
    async with market(shop, tmp_path, broker=ports) as there:
        await selling
        assert shop.orders() == there.paid() == {1}
        await in_thread(producer.close)


async def test_many_threads_and_sessions_share_a_producer(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there:
        producer = there.producer(timeout_s=60)

        def sell(seller: int) -> None:
            for number in range(seller * 4, seller * 4 + 4):
                with there.session() as session, producer.transaction(session) as tx:
                    pay(tx, number)
                    if number % 4 == 3:
                        tx.db.rollback()

        def sell_all() -> None:
            with ThreadPoolExecutor(50) as threads:
                ends = [threads.submit(sell, seller) for seller in range(50)]
            # Each seller ended its last transaction inside the block.
            codes = Counter(getattr(end.exception(), "code", "") for end in ends)
            assert codes == {"transaction_ended_inside": 50}

        await in_thread(sell_all)
        await there.agrees({number for number in range(200) if number % 4 != 3})
