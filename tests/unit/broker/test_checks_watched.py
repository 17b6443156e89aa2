"""Metrics, alerts and status tell who checks, and that checks fail or stand still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.checks import rounds
from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.broker.watch.alert_rules import ALERTS, PIPELINE_STARTS_MS_MAX
from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.asking import answering, check, producer
from tests.unit.broker.native_peer import ask
from tests.unit.broker.test_metrics import scrape
from tests.unit.broker.wire import COMMIT, END, SEND, Peer, clock_of, half, serving

POLICY = CheckPolicy()
STALLED_MS = 2 * POLICY.check_interval_ms


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run rounds only when the test says so."""
    monkeypatch.setattr("escrowmq.broker.server.CHECK_S", 3_600.0)


@asynccontextmanager
async def checking(folder: Path, checked_by: str = "broker") -> AsyncIterator[Server]:
    changes: dict[str, Any] = {"broker": {"http_port": 0}, "policy": {"checked_by": checked_by}}
    async with serving(folder, **changes) as server:
        yield server


def alert(server: Server, name: str) -> int:
    return ALERTS[name].value(status(server.broker))


async def test_metrics_tell_the_checker_and_the_results_of_the_last_round(tmp_path: Path) -> None:
    async with checking(tmp_path, "auto") as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await server.broker.rounds.run()
        header, _ = await check(peer)
        await peer.ask(END, answering(header, COMMIT))
        clock_of(server).advance(ms=7_000)
        page = await scrape(server)
        values = [page.value("escrowmq_checker", checker=who) for who in ("broker", "pipeline")]
        assert (values, page.value("escrowmq_checker", checker="none")) == ([1, 0], 0)
        assert page.value("escrowmq_check_round_age_seconds") == 7
        assert 0 <= page.value("escrowmq_check_round_seconds") < 10
        assert page.value("escrowmq_check_rounds_total", result="succeeded") == 1
        assert page.value("escrowmq_check_rounds_total", result="failed") == 0
        assert page.value("escrowmq_check_round_outcomes_total", outcome="asked") == 1
        assert page.value("escrowmq_checks_stalled_seconds") == 0
        await ask(peer, NativeCode.PIPELINE_HEARTBEAT, HeartbeatHeader(pipeline="host/1"))
        page = await scrape(server)
        assert page.value("escrowmq_checker", checker="pipeline") == 1
        assert page.value("escrowmq_checker", checker="broker") == 0


async def test_rounds_that_fail_are_an_alert_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
        raise OSError("no more")

    async with checking(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
        await server.broker.rounds.run()
        with monkeypatch.context() as failing:
            failing.setattr(rounds, "list_heads", fail)
            clock_of(server).advance(ms=STALLED_MS)
            with pytest.raises(OSError, match="no more"):
                await server.broker.rounds.run()
        assert status(server.broker).round_error == "no more"
        assert alert(server, "checks_stalled") == 0
        clock_of(server).advance(ms=1)
        assert alert(server, "checks_stalled") == STALLED_MS + 1
        page = await scrape(server)
        assert page.value("escrowmq_checks_stalled_seconds") == (STALLED_MS + 1) / 1_000
        assert page.value("escrowmq_check_rounds_total", result="failed") == 1
        await server.broker.rounds.run()
        assert alert(server, "checks_stalled") == 0
        assert status(server.broker).round_error == ""


@pytest.mark.parametrize("checked_by", ["broker", "auto", "pipeline", "off"])
async def test_without_rounds_only_a_broker_that_checks_is_stalled(
    tmp_path: Path, checked_by: str
) -> None:
    async with checking(tmp_path, checked_by) as server:
        clock_of(server).advance(ms=STALLED_MS + 1)
        # Nothing is undecided.
        assert alert(server, "checks_stalled") == 0
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
        clock_of(server).advance(ms=POLICY.check_after_ms - 1)
        # Nothing is due.
        assert alert(server, "checks_stalled") == 0
        clock_of(server).advance(ms=1)
        is_checker = checked_by in ("broker", "auto")
        assert (alert(server, "checks_stalled") > 0) is is_checker


@pytest.mark.parametrize(
    ("checked_by", "expected"),
    [
        ("broker", (False, False)),
        ("off", (False, False)),
        ("auto", (False, True)),
        ("pipeline", (True, True)),
    ],
)
async def test_a_pipeline_is_away_only_where_one_is_expected(
    tmp_path: Path, checked_by: str, expected: tuple[bool, bool]
) -> None:
    """With `auto`, one that was attached since the start is expected to come back."""
    is_expected_before, is_expected_after = expected
    async with checking(tmp_path, checked_by) as server:
        clock_of(server).advance(ms=PIPELINE_STARTS_MS_MAX + 1)
        assert (alert(server, "pipeline_away") > 0) is is_expected_before
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.PIPELINE_HEARTBEAT, HeartbeatHeader(pipeline="host/1"))
        assert alert(server, "pipeline_away") == 0
        clock_of(server).advance(ms=PIPELINE_STARTS_MS_MAX + 1)
        assert (alert(server, "pipeline_away") > 0) is is_expected_after
        away_s = (await scrape(server)).value("escrowmq_pipeline_away_seconds")
        assert (away_s > 0) is is_expected_after
