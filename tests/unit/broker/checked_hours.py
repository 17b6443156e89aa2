"""Runs hours of two checkers, one per seed; also the hunt ``checks`` of ``make crash``."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from escrowmq.broker.checks import ledger_passes
from escrowmq.broker.server import Server
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import ManualClock
from escrowmq.transaction.states import State
from tests.unit.broker.asking import row
from tests.unit.broker.checked_hour import POLICY, CheckedHour, pipeline_beside
from tests.unit.broker.hour_judge import judge_log
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.test_ledger_passes import Shop, passes
from tests.unit.broker.wire import COMMIT, T0, Peer, serving


def hasten(set_value: Callable[[object, str, object], None]) -> None:
    """Look ledgers up again at once, because the broker's pauses are in real time."""
    set_value(ledger_passes, "REST_UNDECIDED_S", 0.0)
    set_value(ledger_passes, "REST_S", 0.0)
    set_value(ledger_passes, "PROBE_S", 0.1)


async def an_hour(folder: Path, seed: int) -> Counter[str]:
    """Run the hour of a seed and judge it; return how often what happened."""
    rng, clock, shop = Random(seed), ManualClock(T0), Shop.create(folder / "shop.db")
    urls = {"shop": shop.url}
    changes: dict[str, Any] = {
        "policy": asdict(POLICY),
        "store": {"durability": "os"},
        "ledgers": urls,
    }
    async with serving(folder / "data", clock, **changes) as server:
        await passes(server).probe()
        operator = await Peer.to(server.broker_address)
        pipeline = pipeline_beside(server, clock, shop, rng)
        hour = CheckedHour(server, clock, shop, rng, operator, pipeline)
        try:
            await hour.pass_by()
            await hour.end()
        finally:
            pipeline.close()
        events = await all_rows(operator, NativeCode.LIST_EVENTS, LogRangeHeader())
        groups = {head: deal.group for head, deal in hour.deals.items()}
        judge_log(events, POLICY, groups)
        judge_ends(hour)
        assert server.broker.contradictions.count == 0
        return counted(server, hour, events)


def judge_ends(hour: CheckedHour) -> None:
    """Every transaction has ended, and as its database says."""
    in_ledger = hour.shop.outcomes()
    for deal in hour.deals.values():
        state = row(hour.server, deal.head).state
        assert state is not State.PREPARED, f"not ended: {deal}"
        if state is State.PARKED:
            continue
        if deal.truth is None:
            assert in_ledger[deal.transaction_id] == state.label, f"{state}: {deal}"
        else:
            expected = State.COMMITTED if deal.truth == COMMIT else State.ROLLED_BACK
            assert state is expected, f"{state}: {deal}"


def counted(server: Server, hour: CheckedHour, events: list[Any]) -> Counter[str]:
    counts = Counter(one.event for one in events)
    counts["stale"] = server.broker.counts.verdicts["stale"]
    counts["handovers"] = hour.handovers
    return counts


def hunt(seed: int) -> Mapping[str, int]:
    """Run an hour with this seed, for ``make crash``."""
    hasten(setattr)
    with tempfile.TemporaryDirectory(prefix="escrowmq-checks-") as folder:
        counts = asyncio.run(an_hour(Path(folder), seed))
    return {"transactions checked by two": counts["held"], "checks": counts["asked"]}
