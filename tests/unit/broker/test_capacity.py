"""The broker warns its operator before a limit is reached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from escrowmq.broker.state.capacity import Capacity
from escrowmq.cli.admin.status import ReportedLag, facts
from escrowmq.cli.doctor.broker import of_answer
from escrowmq.protocol.native.requests import NativeCode
from tests.unit.broker.native_peer import ask
from tests.unit.broker.test_metrics import scrape
from tests.unit.broker.wire import Peer, make_topic, serving
from tests.unit.logged import event_of


@pytest.mark.parametrize(("used", "is_near"), [(0, False), (79, False), (80, True), (100, True)])
def test_a_limit_is_near_from_80_percent_on(used: int, *, is_near: bool) -> None:
    assert Capacity(kind="topics", used=used, max=100).is_near is is_near


async def test_a_warning_comes_once_when_a_limit_comes_near(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "escrowmq.broker.state.capacity")

    def lines() -> list[tuple[str, str]]:
        return [(event_of(one), one.kind) for one in caplog.records if hasattr(one, "kind")]

    async with serving(tmp_path, limits={"topics_max": 5}) as server:
        broker = server.broker
        for number in range(3):
            await make_topic(server, f"t-{number}")
        broker.capacities.look()
        assert lines() == []
        assert ("topics", 3, 5) in [(o.kind, o.used, o.max) for o in broker.capacities.all()]
        await make_topic(server, "t-3")
        for _ in range(2):
            broker.capacities.look()
        assert lines() == [("limit_near", "topics")]
        await broker.writer.submit(broker.topics.remove("t-3", by="ann"))
        for _ in range(2):
            broker.capacities.look()
        assert lines() == [("limit_near", "topics"), ("limit_far", "topics")]


async def test_status_metrics_and_doctor_tell_of_a_limit_that_is_near(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"topics_max": 2}, broker={"http_port": 0}) as server:
        peer = await Peer.to(server.broker_address)
        far = (await ask(peer, NativeCode.STATUS)).header
        assert far.names_near == ""
        for number in range(2):
            await make_topic(server, f"t-{number}")
        near = (await ask(peer, NativeCode.STATUS)).header
        assert near.names_near == "2 of 2 topics"
        lag = ReportedLag(0, "", "")
        assert "2 of 2 topics" in facts(near, lag)["names"]
        for told, level in ((far, "ok"), (near, "warning")):
            (finding,) = (
                one for one in of_answer(told, lag, took_ms=0, apart_ms=0) if one.check == "names"
            )
            assert finding.level.value == level
        page = await scrape(server)
        assert page.value("escrowmq_names", kind="topics") == 2
        assert page.value("escrowmq_names_max", kind="topics") == 2
