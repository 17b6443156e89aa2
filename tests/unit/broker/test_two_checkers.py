"""A pipeline and the broker check at once, and nothing is decided or counted twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.transaction.states import State
from tests.unit.broker.asking import ASK, begin, check, producer, row, verdict, was_asked
from tests.unit.broker.checked_hours import an_hour, hasten
from tests.unit.broker.wire import SEND, half, serving

#: Hours in which everything happens that can happen.
SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_hour_with_stalls_ends_every_transaction_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch.setattr)
    counts = await an_hour(tmp_path, seed)
    # An hour in which little happens proves little.
    rare = ("asked", "parked", "resumed", "committed", "rolled_back", "stale", "handovers")
    assert all(counts[name] for name in rare), counts


async def test_a_long_request_does_not_repeat_the_check_of_another(tmp_path: Path) -> None:
    """Its verdicts are obeyed in slices, and another request checks the transaction in between."""
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        long: asyncio.Future[list[VerdictOutcome]] = asyncio.get_running_loop().create_future()
        missing = [verdict(ASK, 10**6 + number) for number in range(20_000)]
        server.broker.checking.obey([verdict(ASK), *missing], long.set_result)
        assert await begin(server, verdict(ASK)) is VerdictOutcome.ASKED
        await check(peer)
        assert not long.done()
        assert (await long)[0] is VerdictOutcome.STALE
        assert not await was_asked(peer)
        assert (row(server).state, row(server).checks_sent) == (State.PREPARED, 1)
