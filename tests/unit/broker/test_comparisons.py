"""A broker shows the pipeline's last comparison of its records and its state store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.broker.native.status import status
from escrowmq.broker.watch.alert_rules import ALERTS, AlertStates
from escrowmq.cli.admin.status import comparison_of
from escrowmq.protocol.native.comparisons import (
    ComparisonRow,
    DifferenceRow,
    ListComparisonHeader,
    ReportComparisonHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import ManualClock
from tests.unit.broker.native_peer import all_rows, ask
from tests.unit.broker.test_http import get
from tests.unit.broker.wire import T0, Peer, serving
from tests.unit.logged import facts

if TYPE_CHECKING:
    import pytest

FLIPPED = DifferenceRow(
    finding="table_contradicts",
    half_offset=7,
    message_count=1,
    recorded="committed",
    listed="rolled_back",
    found_ago_ms=500,
)
AGREED = ReportComparisonHeader(
    pipeline="p",
    outcome="caught_up",
    decided_before=5,
    half_end=9,
    log_offset=100,
    open_requests=3,
    took_ms=40,
    ended_ago_ms=1_000,
)


async def report(peer: Peer, *rows: DifferenceRow, **fields: Any) -> None:  # noqa: ANN401
    header = msgspec.structs.replace(AGREED, **fields)
    await ask(peer, NativeCode.REPORT_COMPARISON, header, rows)


async def listed(peer: Peer) -> list[ComparisonRow]:
    return await all_rows(peer, NativeCode.LIST_COMPARISON, ListComparisonHeader())


async def test_a_broker_shows_the_last_comparison(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, broker={"http_port": 0}) as server:
        peer = await Peer.to(server.broker_address)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert await listed(peer) == []
        assert comparison_of(told) == "none so far: a pipeline makes it"
        await report(peer)
        (row,) = await listed(peer)
        assert (row.compared_at_ms, row.decided_before, row.finding) == (T0 - 1_000, 5, None)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.compared_at_ms, told.compared_open) == (T0 - 1_000, 3)
        assert "agree up to log offset 100" in comparison_of(told)
        _, page = await get(server, "/metrics")
        assert b"escrowmq_comparison_open_requests 3\n" in page


async def test_differences_are_listed_logged_and_an_alert_until_they_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        alerts = AlertStates(ALERTS, hold_ms=0, repeat_ms=0)

        def notices() -> list[str]:
            told = alerts.look(status(server.broker), undecided_age_ms=60_000)
            return [f"{one.alert} {one.state} {one.value}" for one in told]

        notices()
        with caplog.at_level(logging.ERROR, "escrowmq"):
            await report(peer, FLIPPED, differences=2)
            await report(peer, FLIPPED, differences=2)
        # Logged once: the second report tells nothing new.
        assert len(facts(caplog, "state_store_differs")) == 1
        (row,) = await listed(peer)
        assert (row.finding, row.half_offset, row.differences) == ("table_contradicts", 7, 2)
        assert (row.recorded, row.listed) == ("committed", "rolled_back")
        told = (await ask(peer, NativeCode.STATUS)).header
        assert comparison_of(told).endswith(
            "2 DIFFERENCES: table_contradicts at half offset 7 "
            "(records: committed, state store: rolled_back)"
        )
        assert notices() == ["state_store_differs firing 2"]
        await report(peer)
        assert notices() == ["state_store_differs resolved 0"]


async def test_a_comparison_that_is_behind_or_has_no_room_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for outcome, said in (("behind", "still BEHIND"), ("open_limit", "TOO MANY undecided")):
            await report(peer, outcome=outcome, left_out=2)
            told = (await ask(peer, NativeCode.STATUS)).header
            assert said in comparison_of(told)


async def test_a_state_store_that_was_not_compared_is_named(tmp_path: Path) -> None:
    policy = {"state_store": "mapped", "checked_by": "pipeline"}
    async with serving(tmp_path, policy=policy) as server:
        peer = await Peer.to(server.broker_address)
        for said in ("compared", "state_store_behind"):
            await report(peer, state_store=said)
            told = (await ask(peer, NativeCode.STATUS)).header
            assert told.compared_state_store == said
            shown = "mapped NOT COMPARED (state_store_behind)" in comparison_of(told)
            assert shown == (said == "state_store_behind")
