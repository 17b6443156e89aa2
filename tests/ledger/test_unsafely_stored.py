"""Apache's broker holds a half message unsafely (10, 11 or 12): the block rolls back."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import Unavailable
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.transaction.states import State
from tests.ledger.market import in_thread, market, pay
from tests.ledger.shops import Shop
from tests.unit.client.apache_like import play_apache, store_unsafely


async def test_a_half_message_that_is_not_safe_rolls_the_block_back(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with market(shop, tmp_path) as there:
        play_apache(there.server)
        store_unsafely(monkeypatch, ResponseCode.SLAVE_NOT_AVAILABLE)

        def sell() -> None:
            producer = there.producer()
            with (
                pytest.raises(Unavailable, match="half_not_safe"),
                producer.transaction(there.session()) as tx,
            ):
                pay(tx, 1)
            assert tx.state is TransactionState.ROLLED_BACK

        await in_thread(sell)
        assert shop.orders() == there.paid() == set()
        assert there.states() == [State.ROLLED_BACK]


async def test_a_half_message_that_is_not_safe_rolls_the_async_block_back(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        play_apache(there.server)
        store_unsafely(monkeypatch, ResponseCode.FLUSH_DISK_TIMEOUT)
        with pytest.raises(Unavailable, match="half_not_safe"):
            async with there.async_producer().transaction(AsyncSession(engine)) as tx:
                pay(tx, 1)
        # The caller's own commit raises the error in its hook.
        with pytest.raises(Unavailable, match="half_not_safe"):
            async with (
                AsyncSession(engine) as session,
                session.begin(),
                there.async_producer().transaction(session) as tx,
            ):
                pay(tx, 2)
        assert tx.state is TransactionState.ROLLED_BACK
        assert shop.orders() == there.paid() == set()
        assert there.states() == [State.ROLLED_BACK] * 2
    await engine.dispose()
