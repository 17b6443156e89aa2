"""Failures in a chain's block, and the uses that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.database import block as database_block
from escrowmq.client.database.connections import SqliteConnection
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import OutcomeUnknown
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.ledger import async_hands
from tests.ledger.chains import (
    SHIPPED,
    Opened,
    chaining,
    consumer,
    every_way,
    others,
    rows,
    shipped,
)
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import GROUP, Order, Shop, driver_hand, refused, sqlite_shop

SERVER = "127.0.0.1:9876"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic(SHIPPED)
        yield broker


@pytest.fixture
def producer(shop: Shop, broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, GROUP, ledger=shop.ledger()) as made:
        yield made


async def test_a_decision_that_is_lost_after_commit_leaves_the_message_consumed(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def ship() -> None:
            producer = there.producer(timeout_s=0.3)
            producer.start()
            with chaining(shop, producer) as (hand, tx):
                hand.place(1)
                tx.send(PAID, b"1")
            assert tx.state is TransactionState.COMMITTED_UNTOLD
            assert not tx.message.transactions[0].is_uncommitted

        with there.unanswered(NativeCode.DECIDE_MANY):
            await in_thread(ship)
        assert consumed(shop) == {"m-1"}
        assert there.paid() == set()
        await there.agrees({1})


async def test_halves_that_are_not_answered_roll_everything_back(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def ship() -> None:
            producer = there.producer(timeout_s=0.3)
            producer.start()
            with refused("hold_unanswered"), chaining(shop, producer) as (hand, tx):
                hand.place(1)
                tx.send(PAID, b"1")

        with there.unanswered(NativeCode.HOLD_MANY):
            await in_thread(ship)
        assert rows(shop) == 0
        await there.agrees(set())


def test_a_commit_that_is_interrupted_is_left_to_the_check(
    file_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqliteConnection.commit

    def interrupted(connection: SqliteConnection) -> None:
        commit(connection)
        raise KeyboardInterrupt

    ledger = file_shop.ledger()
    with InProcessBroker(ledgers=[ledger]) as broker:
        broker.create_topic(SHIPPED)
        with Producer(broker.address, GROUP, ledger=ledger) as producer:
            with pytest.raises(OutcomeUnknown), chaining(file_shop, producer) as (hand, tx):
                hand.place(1)
                tx.send(SHIPPED, b"1")
                monkeypatch.setattr(SqliteConnection, "commit", interrupted)
            monkeypatch.undo()
        # The message was not acknowledged, so it is redelivered and recognized.
        assert tx.message.transactions[0].is_uncommitted
        assert (shipped(broker), consumed(file_shop)) == ([], {"m-1"})
        broker.advance(seconds=3_700)
        broker.run_checks()
        assert shipped(broker) == [1]


def test_a_fenced_block_leaves_neither_effect_nor_consumed_row(
    shop: Shop, broker: InProcessBroker, producer: Producer
) -> None:
    with refused("transaction_fenced"), chaining(shop, producer) as (hand, tx):
        hand.place(1)
        tx.send(SHIPPED, b"1")
        if shop.kind == "postgresql":
            shop.fence(tx.transaction_id)
        else:
            # The block is SQLite's only writer, so no other connection can fence it meanwhile.
            fence = f"('{tx.transaction_id}', '{GROUP}', 'rolled_back', 0)"
            hand.execute(f"INSERT INTO escrowmq_ledger VALUES {fence}")
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])


def test_the_time_limit_is_the_ledgers(shop: Shop, broker: InProcessBroker) -> None:
    ledger = SqlLedger(shop.url, max_duration_ms=0)
    with (
        Producer(broker.address, GROUP, ledger=ledger) as producer,
        refused("transaction_too_slow"),
        chaining(shop, producer) as (hand, tx),
    ):
        hand.place(1)
        tx.send(SHIPPED, b"1")
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])


def test_a_block_whose_caller_never_commits_is_not_taken_for_consumed(
    shop: Shop, broker: InProcessBroker, producer: Producer
) -> None:
    with Session(shop.engine()) as session:
        session.begin()
        with consumer.transaction(session, delivery(), producer=producer) as tx:
            session.add(Order(number=1))
            tx.send(SHIPPED, b"1")
        assert tx.message.transactions[0].is_uncommitted
    assert tx.state is TransactionState.ROLLED_BACK
    assert tx.message.transactions[0].is_uncommitted
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])
    assert not broker.undecided()


async def test_a_cancel_at_the_entry_leaves_no_row_for_others_to_commit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = database_block.perform

    async def cancelled(step: Any, connection: Any) -> Any:
        done = await perform(step, connection)
        if "INSERT INTO escrowmq_consumed" in getattr(step, "sql", ""):
            raise asyncio.CancelledError
        return done

    monkeypatch.setattr(database_block, "perform", cancelled)
    async with async_hands.driver(shop) as db:
        with pytest.raises(asyncio.CancelledError):
            async with others.transaction(db, delivery()):
                pytest.fail("it was cancelled")
        await db.commit()
    assert rows(shop) == 0


# Refusals, before anything is written.


def test_a_producer_without_a_ledger_is_refused(shop: Shop) -> None:
    with driver_hand(shop) as hand, refused("producer_without_ledger"):
        consumer.transaction(hand.db, delivery(), producer=Producer(SERVER, GROUP))
    assert rows(shop) == 0


@every_way
def test_a_ledger_in_another_database_is_refused(
    shop: Shop, tmp_path: Path, opened: Opened
) -> None:
    elsewhere = sqlite_shop(tmp_path, "elsewhere.db").ledger()
    producer = Producer(SERVER, GROUP, ledger=elsewhere)
    with opened(shop) as hand:
        block = consumer.transaction(hand.db, delivery(), producer=producer)
        with refused("ledger_differs"), block:
            pytest.fail("its rows would be in two databases")
    assert rows(shop) == 0


async def test_a_mix_of_sync_and_async_is_refused(shop: Shop) -> None:
    plain = Producer(SERVER, GROUP, ledger=shop.ledger())
    awaited = AsyncProducer(SERVER, GROUP, ledger=shop.ledger())
    async with async_hands.driver(shop) as db:
        for mixed in (consumer, others):
            with refused("sync_and_async_mixed"):
                async with mixed.transaction(db, delivery(), producer=plain):
                    pytest.fail("a plain producer would hold the loop")
        block = consumer.transaction(db, delivery(), producer=plain)
        with refused("database_unsupported"), block:
            pytest.fail("no code would await the database")
    with driver_hand(shop) as hand:
        for mixed in (consumer, others):
            unawaited = mixed.transaction(hand.db, delivery(), producer=awaited)
            with refused("sync_and_async_mixed"), unawaited:
                pytest.fail("no code would await the producer")
        with refused("database_unsupported"):
            async with others.transaction(hand.db, delivery(), producer=awaited):
                pytest.fail("the database would hold the loop")
    assert rows(shop) == 0


def test_a_block_is_entered_once(shop: Shop, producer: Producer) -> None:
    with driver_hand(shop) as hand:
        for block in (
            consumer.transaction(hand.db, delivery("m-1")),
            consumer.transaction(hand.db, delivery("m-2"), producer=producer),
        ):
            with block:
                hand.execute("SELECT 1")
            with refused("transaction_over"), block:
                pytest.fail("it is over")


def test_a_producers_block_inside_a_consumers_leaves_nothing_half_done(
    shop: Shop, broker: InProcessBroker, producer: Producer
) -> None:
    with (
        driver_hand(shop) as hand,
        refused("block_already_open"),
        consumer.transaction(hand.db, delivery()),
    ):
        hand.place(1)
        with producer.transaction(hand.db) as tx:
            tx.send(SHIPPED, b"1")
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])
    with (
        driver_hand(shop) as hand,
        consumer.transaction(hand.db, delivery(), producer=producer) as chain,
    ):
        hand.place(1)
        chain.send(SHIPPED, b"1")
    assert (shop.orders(), consumed(shop), shipped(broker)) == ({1}, {"m-1"}, [1])


@pytest.mark.parametrize("others", [(), (2,)])
def test_a_chains_message_goes_with_its_savepoint(
    shop: Shop, broker: InProcessBroker, producer: Producer, others: tuple[int, ...]
) -> None:
    """The consumed row is written even if that was the only message."""
    with (
        driver_hand(shop) as hand,
        consumer.transaction(hand.db, delivery(), producer=producer) as chain,
    ):
        hand.execute("SAVEPOINT mine")
        hand.place(1)
        chain.send(SHIPPED, b"1")
        hand.execute("ROLLBACK TO SAVEPOINT mine")
        for number in others:
            hand.place(number)
            chain.send(SHIPPED, str(number).encode())
    assert (shop.orders(), shipped(broker)) == (set(others), list(others))
    assert consumed(shop) == {"m-1"}
