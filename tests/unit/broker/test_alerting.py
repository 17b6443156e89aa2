"""Alert notices: when they are due, and that a broker sends them."""

from __future__ import annotations

import asyncio
import cProfile
import re
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.broker import Broker
from escrowmq.broker.native.status import BrokerStatus, status
from escrowmq.broker.watch.alert_config import AlertsConfig, masked
from escrowmq.broker.watch.alert_rules import ALERTS, PIPELINE_STARTS_MS_MAX, AlertStates, Notice
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from tests.unit.broker.native_peer import ask, decide, hold, sent_in
from tests.unit.broker.test_notices import WAIT_S, web_server
from tests.unit.broker.wire import Peer, serving
from tests.unit.repository import ROOT


@pytest.fixture
async def calm(tmp_path: Path) -> BrokerStatus:
    """Status of a healthy broker, with its missing pipeline hidden."""
    async with serving(tmp_path) as server:
        return msgspec.structs.replace(status(server.broker), pipeline_away_since_ms=0)


def changed(told: BrokerStatus, **fields: object) -> BrokerStatus:
    return msgspec.structs.replace(told, **fields)


def states(*, hold_ms: int = 1_000, repeat_ms: int = 60_000) -> AlertStates:
    return AlertStates(ALERTS, hold_ms=hold_ms, repeat_ms=repeat_ms)


def looked(known: AlertStates, told: BrokerStatus, at_ms: int, **fields: object) -> list[Notice]:
    return known.look(changed(told, now_ms=at_ms, **fields), undecided_age_ms=5_000)


def words(notices: list[Notice]) -> list[str]:
    return [f"{one.alert} {one.state}{' again' * one.is_repeated}" for one in notices]


def test_an_alert_is_told_once_then_again_after_a_while_and_when_it_is_over(
    calm: BrokerStatus,
) -> None:
    known = states()
    assert looked(known, calm, 0) == []
    assert looked(known, calm, 0, disk="no_messages") == []
    (notice,) = looked(known, calm, 1_000, disk="no_messages")
    assert (notice.alert, notice.since_ms, notice.at_ms, notice.value) == ("disk_full", 0, 1_000, 1)
    assert known.firing == ["disk_full"]
    assert looked(known, calm, 60_999, disk="no_messages") == []
    assert words(looked(known, calm, 61_000, disk="no_messages")) == ["disk_full firing again"]
    assert words(looked(known, calm, 61_001)) == ["disk_full resolved"]
    assert looked(known, calm, 61_002) == []
    assert known.firing == []


def test_a_condition_that_does_not_last_is_not_told(calm: BrokerStatus) -> None:
    known = states()
    assert looked(known, calm, 0, is_clock_doubtful=True) == []
    assert looked(known, calm, 500) == []
    assert looked(known, calm, 1_500, is_clock_doubtful=True) == []


def test_events_that_are_counted_are_told_at_once_and_each_increase_is_news(
    calm: BrokerStatus,
) -> None:
    known = states(repeat_ms=0)
    assert words(looked(known, calm, 0, parked=1)) == ["parked firing"]
    assert looked(known, calm, 1, parked=1) == []
    assert words(looked(known, calm, 2, parked=3)) == ["parked firing"]
    assert looked(known, calm, 3, parked=1) == []
    assert words(looked(known, calm, 4, parked=2)) == ["parked firing"]
    assert words(looked(known, calm, 10**9)) == ["parked resolved"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("undecided_too_old", {"oldest_undecided_age_ms": 5_000}),
        ("nobody_to_ask", {"undecided_without_producer": 1}),
        ("contradiction", {"contradictions": 1}),
        ("pipeline_away", {"pipeline_away_since_ms": 10 - PIPELINE_STARTS_MS_MAX - 1}),
        ("checks_stalled", {"checks_stalled_ms": 60_001}),
        ("ledger_unreachable", {"undecided_without_ledger": 1}),
        ("retention_waits", {"retention": "waits_for_room"}),
        ("undecided_exceed_retention", {"retention_bytes": 1, "undecided_bytes": 2}),
        ("names_near_limit", {"names_near": "9 of 10 topics"}),
        ("backup_failed", {"backup_failures_in_a_row": 1}),
        ("backup_overdue", {"backup_overdue_ms": 1}),
        ("certificate_expires", {"tls_expires_at_ms": 1}),
        ("tls_not_reloaded", {"tls_error": "no PEM"}),
    ],
)
def test_each_condition_is_an_alert(
    calm: BrokerStatus, name: str, fields: dict[str, object]
) -> None:
    known = states(hold_ms=0)
    assert [one.alert for one in looked(known, calm, 10, **fields)] == [name]
    young = states(hold_ms=0)
    assert looked(young, calm, 10, oldest_undecided_age_ms=4_999) == []


def test_a_pipeline_that_still_starts_is_no_alert(calm: BrokerStatus) -> None:
    """From its start, the broker's status says that no pipeline is attached."""
    known = states(hold_ms=0)
    late_ms = 1 + PIPELINE_STARTS_MS_MAX
    assert looked(known, calm, late_ms, pipeline_away_since_ms=1) == []
    (notice,) = looked(known, calm, late_ms + 1, pipeline_away_since_ms=1)
    assert (notice.alert, notice.value) == ("pipeline_away", late_ms)


async def test_a_broker_posts_an_alert_and_that_it_is_over(tmp_path: Path) -> None:
    with web_server() as (url, got):
        config = {"url": url, "which": "nobody_to_ask", "interval_ms": 10, "hold_ms": 0}
        async with serving(tmp_path, alerts=config) as server:
            peer = await Peer.to(server.broker_address)
            held = (await hold(peer, "t1")).rows[0].half_offset
            fired = await asyncio.to_thread(got.get, timeout=WAIT_S)
            assert (fired["alert"], fired["state"], fired["value"]) == (
                "nobody_to_ask",
                "firing",
                1,
            )
            assert (fired["broker"], fired["version"]) == ("broker-a", 1)
            told = (await ask(peer, NativeCode.STATUS)).header
            assert (told.alerts, told.alerts_firing) == ("on", "nobody_to_ask")
            await decide(peer, held)
            over = await asyncio.to_thread(got.get, timeout=WAIT_S)
            assert (over["alert"], over["state"]) == ("nobody_to_ask", "resolved")


async def test_a_look_costs_little_for_each_producer_group(tmp_path: Path) -> None:
    """Count Python calls, which unlike milliseconds do not depend on the machine."""
    group_count = 400
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        status(server.broker)
        few = calls_of_status(server.broker)
        for number in range(group_count):
            header = HoldManyHeader(producer_group=f"pay-{number}")
            await ask(peer, NativeCode.HOLD_MANY, header, [sent_in(f"t{number}")])
        assert status(server.broker).undecided_without_producer == group_count
        assert calls_of_status(server.broker) - few < 4 * group_count


def calls_of_status(broker: Broker) -> int:
    profile = cProfile.Profile()
    profile.runcall(status, broker)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_web_server_that_hangs_does_not_hold_the_broker(tmp_path: Path) -> None:
    """The event loop answers while a notice hangs, and a stop does not wait for it."""

    async def run() -> None:
        # The kernel accepts connections, but no program answers them.
        hanging = socket.create_server(("127.0.0.1", 0))
        port = hanging.getsockname()[1]
        url = f"http://127.0.0.1:{port}/"
        config = {"url": url, "interval_ms": 10, "hold_ms": 0, "timeout_ms": 60_000}
        async with serving(tmp_path, alerts=config) as server:
            peer = await Peer.to(server.broker_address)
            await hold(peer, "t1")
            while "nobody_to_ask" not in (await ask(peer, NativeCode.STATUS)).header.alerts_firing:
                pass
            began = time.monotonic()
            await ask(peer, NativeCode.STATUS)
            assert time.monotonic() - began < 1.0
        assert time.monotonic() - began < WAIT_S
        hanging.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"url": "ftp://host/x"}, "alerts.url"),
        ({"url": "hooks.example.org"}, "alerts.url"),
        ({"url": "http://[hooks/x"}, "alerts.url"),
        ({"url": "http://hooks:port/x"}, "alerts.url"),
        ({"url": "http://hooks:99999/x"}, "alerts.url"),
        ({"url": "http://user:password@hooks/x"}, "alerts.url"),
        ({"url": "http://hooks/a b"}, "alerts.url"),
        ({"url": "http://hooks/\u00e4"}, "alerts.url"),
        ({"command": "a 'b"}, "alerts.command"),
        ({"which": "parked,colour"}, "alerts.which"),
        ({"interval_ms": 1}, "alerts.interval_ms"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        AlertsConfig(**fields)
    assert refused.value.fields["key"] == key
    assert "hooks" not in str(refused.value)


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert masked("") == ""
    assert masked("https://u:p@hooks.example.org/a/b?c=d") == "https://hooks.example.org/***"
    assert masked("http://[bad/x") == "***"
    assert masked("http://127.0.0.1:8080/x") == "http://127.0.0.1:8080/***"
    assert AlertsConfig().names == set(ALERTS)
    assert AlertsConfig(which="parked, disk_full").names == {"parked", "disk_full"}


def test_the_page_shows_a_notice() -> None:
    page = (ROOT / "docs/operate/watching.md").read_text(encoding="utf-8")
    shown = page.partition("```json\n")[2].partition("```")[0]
    notice = msgspec.json.decode(shown, type=Notice)
    assert msgspec.json.decode(shown) == msgspec.to_builtins(notice)


def test_the_page_names_every_alert() -> None:
    page = (ROOT / "docs/operate/watching.md").read_text(encoding="utf-8")
    table = page.partition("| The broker tells it when |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(ALERTS)
