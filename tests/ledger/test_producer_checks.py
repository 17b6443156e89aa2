"""Back-checks that the ledger answers without user code or messages, and the janitor."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.ledger.checks import resolve
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.checks import NEVER_MS, deadline_at_ms
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import ALLOWED_MS, LEDGER, TRANSACTION_CHECK_TIMES
from escrowmq.protocol.native.headers import TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import State
from tests.ledger.market import PAID, Market, in_thread, market, pay
from tests.ledger.shops import GROUP, Shop, new_id, sqlite_shop
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.wire import Peer, eventually


async def hold(there: Market, shop: Shop, number: int, transaction_id: str = "") -> str:
    """Leave the state of a producer that died before COMMIT."""
    producer = there.async_producer(ledger=None)
    transaction_id = transaction_id or new_id()
    message = Message(topic=PAID, body=b"%d" % number)
    producing = await producer._core.started()
    await producing.hold(transaction_id, [message], ledger=shop.ledger().uuid())
    await producer.close()
    return transaction_id


def commit(shop: Shop, transaction_id: str, number: int) -> None:
    """Leave the state of a producer that died after COMMIT."""
    shop.run(f"INSERT INTO orders VALUES ({number})")
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{transaction_id}', '{GROUP}', 'committed', 1)")


async def test_any_producer_of_the_group_answers_out_of_the_ledger(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:
        for number in range(6):
            key = await hold(there, shop, number)
            if number % 2:
                commit(shop, key, number)
        await there.async_producer().start()
        await there.agrees({1, 3, 5})
        assert sorted(shop.outcomes().values()) == ["committed"] * 3 + ["rolled_back"] * 3


async def test_checks_that_come_together_are_answered_as_a_set(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets: list[int] = []

    def counted(opener: Any, questions: Any, **rest: Any) -> Any:
        sets.append(len(questions))
        return resolve(opener, questions, **rest)

    monkeypatch.setattr("escrowmq.client.ledger.table.checks.resolve", counted)
    async with market(shop, tmp_path) as there:
        holder = there.async_producer(ledger=None)
        uuid = shop.ledger().uuid()
        messages = [Message(topic=PAID, body=b"1")]
        producing = await holder._core.started()
        await asyncio.gather(*(producing.hold(new_id(), messages, ledger=uuid) for _ in range(300)))
        await holder.close()
        await there.async_producer().start()
        await eventually(lambda: there.server.broker.clients.producers(GROUP))
        there.check_all()
        await eventually(lambda: not there.undecided())
        assert sum(sets) == 300
        assert len(sets) < 30
        assert there.paid() == set()


@pytest.mark.parametrize("now_ms", [None, 1_700_000_000_000], ids=["same clock", "years behind"])
async def test_a_transaction_not_overdue_by_store_time_is_not_fenced(
    shop: Shop, tmp_path: Path, now_ms: int | None
) -> None:
    async with market(shop, tmp_path, is_on_time=True, now_ms=now_ms) as there:
        key = await hold(there, shop, 1)
        await there.async_producer().start()
        await eventually(lambda: there.server.broker.clients.producers(GROUP))
        written = there.server.broker.store.log.end
        there.check_all()
        # The broker records the question and the answer.
        await eventually(lambda: there.server.broker.store.log.end > written)
        await asyncio.to_thread(lambda: None)
        assert there.states() == [State.PREPARED]
        assert shop.outcomes() == {}
        commit(shop, key, 1)
        await there.agrees({1})


async def test_another_ledgers_half_is_unknown_and_never_fenced(shop: Shop, tmp_path: Path) -> None:
    other = sqlite_shop(tmp_path, "other.db")
    async with market(shop, tmp_path) as there:
        await hold(there, shop, 1)
        await there.async_producer(ledger=other.ledger()).start()
        await eventually(lambda: there.server.broker.clients.producers(GROUP))
        asked = there.server.broker.checking
        there.check_all()
        await eventually(lambda: asked.asked_count == 1)
        there.check_all()
        await eventually(lambda: asked.asked_count == 2)
        assert there.states() == [State.PREPARED]
        assert (shop.outcomes(), other.outcomes()) == ({}, {})
    other.close()


async def test_a_ledger_that_cannot_be_read_answers_nothing(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    async with market(shop, tmp_path) as there:
        await hold(there, shop, 1)
        await there.async_producer().start()
        await eventually(lambda: there.server.broker.clients.producers(GROUP))
        shop.run("DROP TABLE escrowmq_ledger")
        there.check_all()
        await eventually(lambda: there.server.broker.checking.asked_count == 1)
        there.check_all()
        await eventually(lambda: there.server.broker.checking.asked_count == 2)
        assert there.states() == [State.PREPARED]
    shop.close()


async def test_a_producer_with_ledger_and_listener_asks_each_for_its_own(
    shop: Shop, tmp_path: Path
) -> None:
    def ask(message: Received) -> Resolution:
        assert LEDGER not in message.properties
        return Resolution.COMMIT

    async with market(shop, tmp_path) as there:
        await hold(there, shop, 1)
        await there.async_producer(ledger=None).send_half(PAID, b"2")
        await there.async_producer(checker=ask).start()
        await there.settled()
        await eventually(lambda: there.paid() == {2})


async def test_the_janitor_deletes_what_is_decided_and_nothing_else(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> int:
            producer = there.producer()
            for number in range(5):
                with producer.transaction(there.session()) as tx:
                    pay(tx, number)
            return producer.clean_ledger()

        undecided = await hold(there, shop, 7)
        commit(shop, undecided, 7)
        commit(shop, "nobody-knows-me", 8)
        assert await in_thread(sell) == 5
        assert set(shop.outcomes()) == {undecided, "nobody-knows-me"}


async def test_the_janitor_works_by_itself(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.producer(clean_ledger_every_s=0.01)

        def sell() -> None:
            with producer.transaction(there.session()) as tx:
                pay(tx, 1)

        await in_thread(sell)
        await eventually(lambda: not shop.outcomes())


async def test_without_the_broker_the_janitor_deletes_nothing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        await producer.start()
        commit(shop, new_id(), 1)
        monkeypatch.setattr("escrowmq.client.producer.janitor_schedule.ANSWERS_S", 0.1)
        with there.unanswered(NativeCode.LIFE_LINE), pytest.raises(TimeoutError):
            await producer.clean_ledger()
        assert len(shop.outcomes()) == 1


def half(**properties: str) -> Received:
    return Received(
        topic=PAID,
        body=b"",
        key="",
        keys=(),
        tag="",
        properties=properties,
        message_id="",
        transaction_id="",
        broker_name="",
        queue_id=0,
        queue_offset=0,
        retries=0,
        born_at_ms=1_000,
        visible_at_ms=5_000,
        log_offset=0,
        queue_topic=PAID,
    )


def test_a_deadline_counts_from_when_the_half_was_first_stored() -> None:
    assert deadline_at_ms(half(**{ALLOWED_MS: "70"})) == 5_070
    first = {ALLOWED_MS: "70", TRANSACTION_CHECK_TIMES: "1"}
    assert deadline_at_ms(half(**first)) == 5_070
    # Apache's broker has stored the message again.
    assert deadline_at_ms(half(**{**first, TRANSACTION_CHECK_TIMES: "2"})) == 1_070
    # Our SDK wrote none of these, so the message is never overdue.
    for odd in ({}, {ALLOWED_MS: ""}, {ALLOWED_MS: "-1"}, {ALLOWED_MS: "soon"}):
        assert deadline_at_ms(half(**odd)) == NEVER_MS > time.time() * 1_000


async def test_a_ledger_that_cannot_be_read_is_told_to_the_broker(
    file_shop: Shop, tmp_path: Path
) -> None:
    async with market(file_shop, tmp_path) as there:
        key = await hold(there, file_shop, 1)
        await there.async_producer().start()
        await eventually(lambda: there.server.broker.clients.producers(GROUP))
        file_shop.run("DROP TABLE escrowmq_ledger_id")
        there.check_all()
        remarks = await answers_about(there, key)
        assert remarks == ["check 1: ledger: ledger_missing"]


async def answers_about(there: Market, transaction_id: str) -> list[str]:
    """Wait for the producers' answers, and return them."""
    peer = await Peer.to(there.server.broker_address)
    asked = TransactionHeader(transaction_id=transaction_id)

    async def answers() -> list[str]:
        line = await all_rows(peer, NativeCode.LIFE_LINE, asked)
        return [one.detail for one in line if one.event == "answered"]

    async with asyncio.timeout(10):
        while not (found := await answers()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
    return found
