"""A real pipeline dies in the middle of a round: the broker checks, until the pipeline is back."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from escrowmq.broker.checks.leading import Checker
from escrowmq.broker.server import Server
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.policy import CheckPolicy
from tests.interop.child import Child
from tests.spark.sessions import kill_session
from tests.unit.broker.asking import answering, check, producer, was_asked
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    UNKNOWN,
    Peer,
    clock_of,
    eventually,
    half,
    serving,
)
from tests.unit.pipeline.losing import LosingProxy
from tests.unit.repository import ROOT

POLICY = CheckPolicy()
SILENT_MS = 15_000
END_S_MAX = 20.0


@contextmanager
def pipeline(folder: Path, address: str) -> Iterator[Child]:
    """Run ``escrowmq pipeline`` on embedded Spark; none of its processes is left after that."""
    settings = {
        "lake_uri": str(folder / "lake"),
        "checkpoint_uri": str(folder / "checkpoints"),
        "cache_dir": str(folder / "cache"),
        "archive": "false",
        "settle_interval_ms": "500",
        "niceness": "0",
    }
    given = [f"--set=pipeline.{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "escrowmq.cli.main", "pipeline", "--master", "local[1]"]
    process = Child(
        "pipeline",
        [*command, "--brokers", address, *given],
        log=folder / "pipeline.log",
        # Use the packaged Java, even if the host has one.
        environment={"JAVA_HOME": ""},
        directory=ROOT,
    )
    try:
        yield process
    finally:
        kill_session(process.pid)
        process.kill()


class FatalWay(LosingProxy):
    """Kills the pipeline when it sends verdicts; the broker obeys them, and nobody hears of it."""

    def __init__(self, broker_address: str) -> None:
        super().__init__(broker_address, self._kills)
        self.victim: Child | None = None

    def _kills(self, code: NativeCode, _nth: int) -> bool:
        if code is not NativeCode.OBEY_VERDICTS or self.victim is None:
            return False
        kill_session(self.victim.pid)
        return True


async def leads(server: Server, process: Child) -> None:
    """Wait until the pipeline runs and leads."""
    ready = await asyncio.to_thread(process.stdout.readline)
    assert ready.startswith(b"ready "), process.log.read_text(encoding="utf-8")
    await eventually(lambda: server.broker.leadership.look() is Checker.PIPELINE)


async def test_the_broker_takes_over_from_a_killed_pipeline_and_gives_way_when_it_is_back(
    tmp_path: Path,
) -> None:
    ways: list[FatalWay] = []
    try:
        async with serving(tmp_path / "data", policy={"checked_by": "auto"}) as server:
            ways.append(FatalWay(server.broker_address).__enter__())
            await a_death_and_a_return(server, ways[0], tmp_path)
    finally:
        # After the broker, which may still owe an answer to the dead pipeline.
        for way in ways:
            way.__exit__()


async def a_death_and_a_return(server: Server, way: FatalWay, folder: Path) -> None:
    clock, peer = clock_of(server), await producer(server, "p")
    with pipeline(folder, way.address) as process:
        await leads(server, process)
        await peer.ask(SEND, half("t1"), b"paid")
        way.victim = process
        clock.advance(ms=POLICY.check_after_ms)
        first, _ = await check(peer)
        assert await asyncio.to_thread(process.wait, END_S_MAX) == -signal.SIGKILL
        way.victim = None
    await peer.ask(END, answering(first, UNKNOWN))
    await peer.ask(SEND, half("t2"), b"paid")
    clock.advance(ms=SILENT_MS)
    await server.broker.rounds.run()
    assert server.broker.leadership.checker == "pipeline"
    clock.advance(ms=1)
    # One round after that, the broker has asked about all that is due, and nothing else.
    await server.broker.rounds.run()
    assert server.broker.leadership.checker == "broker"
    second, _ = await check(peer)
    assert second.transaction_id == "t2"
    assert not await was_asked(peer)
    await peer.ask(END, answering(second, COMMIT))
    with pipeline(folder, way.address) as process:
        await leads(server, process)
        await peer.ask(SEND, half("t3"), b"paid")
        clock.advance(ms=POLICY.check_after_ms)
        third, _ = await check(peer)
        assert third.transaction_id == "t3"
        await peer.ask(END, answering(third, COMMIT))
        assert server.broker.leadership.look() is Checker.PIPELINE
    # The first one has answered, and its next check is not due yet.
    assert await life(peer) == {
        0: ["held", "asked", "answered"],
        1: ["held", "asked", "committed"],
        2: ["held", "asked", "committed"],
    }


async def life(peer: Peer) -> dict[int, list[str]]:
    """Return the events of each transaction, without those of its messages."""
    found: dict[int, list[str]] = {}
    for event in await all_rows(peer, NativeCode.LIST_EVENTS, LogRangeHeader()):
        if event.event != "visible":
            found.setdefault(event.head, []).append(event.event)
    return found
