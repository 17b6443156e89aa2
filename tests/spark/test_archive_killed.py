"""Messages and life lines are in the lake once, whatever is killed or restarted, at any time."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.archive import events as archive_events
from escrowmq.pipeline.archive import messages as archive_messages
from escrowmq.pipeline.archive.tasks import written_by
from escrowmq.pipeline.lake.tables import TRANSACTIONS
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.interop.child import Child
from tests.spark.archive_driver import STEPS
from tests.spark.lakeside import Lakeside
from tests.spark.topics import decide, hold, row
from tests.unit.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_S_MAX = 300.0


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    """Yield an empty broker and an empty lake."""
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield Lakeside(spark, broker, tmp_path)


def add(side: Lakeside, number: int) -> None:
    """Add a message and a transaction."""
    side.send(b"%d sent" % number)
    decide(side.broker, hold(side.broker, f"t-{number}", row(b"%d held" % number, queue_id=1)))


def expect(side: Lakeside, count: int) -> None:
    """Assert that the lake has this many of both, each once, with all their events."""
    bodies = [b"%d %s" % (one, how) for one in range(count) for how in (b"held", b"sent")]
    assert side.bodies() == bodies
    with NativeCalls(side.broker.broker_address) as calls:
        events = list(calls.rows(NativeCode.LIST_EVENTS, LogRangeHeader()))
    told = [(one.log_offset, one.event, one.head) for one in events]
    assert len(told) == 3 * count
    assert side.rows(TRANSACTIONS, "log_offset", "event", "head") == sorted(told)


def test_a_driver_killed_at_each_step_and_a_broker_restarted_then(
    side: Lakeside, tmp_path: Path
) -> None:
    for number, step in enumerate(STEPS):
        add(side, number)
        arguments = (tmp_path, side.broker.broker_address, step)
        driver = Child(
            "driver",
            [sys.executable, "-m", "tests.spark.archive_driver", *arguments],
            log=tmp_path / f"{step}.log",
            # Use the packaged Java, even if the host has one.
            environment={"PYTHONPATH": str(ROOT), "JAVA_HOME": ""},
            directory=ROOT,
        )
        try:
            status = driver.wait(DRIVER_S_MAX)
        finally:
            driver.kill()
        assert status == -signal.SIGKILL, driver.log.read_text(encoding="utf-8")
        # Either nothing or everything of a batch.
        assert len(side.bodies()) == (2 * number if step == "written" else 2 * number + 2)
        side.broker.restart()
        side.archive()
        expect(side, number + 1)


def test_a_broker_that_restarts_in_the_middle_of_a_stream_is_read_on(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts: list[str] = []
    # Two streams run, each in its own thread.
    one_at_a_time = threading.Lock()

    def restart(when: str, count: int) -> None:
        with one_at_a_time:
            if len(restarts) == count:
                restarts.append(when)
                side.broker.restart()

    def restarting(*arguments: Any) -> Any:  # noqa: ANN401 -- passed on
        """Restart once before the tasks read, and once before the driver commits."""
        restart("before", 0)
        files = written_by(*arguments)
        restart("after", 1)
        return files

    for module in (archive_messages, archive_events):
        monkeypatch.setattr(module, "written_by", restarting)
    for number in range(2):
        # A new driver each time: its streams start from the checkpoint.
        archive = side.archiving(interval_ms=200)
        try:
            add(side, number)
            assert archive.run().is_complete
        finally:
            archive.rest()
        expect(side, number + 1)
    assert restarts == ["before", "after"]
