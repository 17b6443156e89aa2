"""A broker's look-up process in a test: an event loop, ledgers and requests for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from escrowmq.broker.checks.look_up_process import LookUpLimits, LookUpProcess
from escrowmq.model.errors import Unavailable
from escrowmq.protocol.look_up.messages import LookUpRequest

COMMAND = (sys.executable, "-m", "escrowmq.look_up.child")
PATIENT = LookUpLimits(grace_s=60.0, probe_s=60.0, pauses_s=(0.001, 0.001))
#: Only look-ups are hasty: a loaded machine may need long for the first probe.
HASTY = LookUpLimits(grace_s=0.2, probe_s=60.0, pauses_s=(0.001, 0.001))
NOW_MS = 1_700_000_000_000

T = TypeVar("T")
Factory = Callable[[], asyncio.AbstractEventLoop]


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves forward."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def run(work: Coroutine[object, object, T], factory: Factory = SkippingLoop) -> T:
    """Run a test's work, and check that it leaves no process, task or descriptor behind."""

    async def checked() -> T:
        await _open_what_stays_open()
        before, other_children = pipes(), children()
        result = await work
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert pipes() <= before
        assert children() <= other_children
        return result

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(checked())


async def _open_what_stays_open() -> None:
    """Run a process with pipes, for which an event loop opens descriptors of its own."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-S", "-c", "")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    await process.communicate()
    await reaped(process.pid)
    await asyncio.sleep(0)


def pipes() -> set[Path]:
    """Return the pipes that this process has open. Other tests' threads may open sockets."""
    found = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):
            found.add(path.readlink())
    return {link for link in found if str(link).startswith("pipe:")}


def children() -> set[str]:
    """Return the children of this process, running or not reaped; other tests may have some."""
    found: set[str] = set()
    for task in list(Path("/proc/self/task").iterdir()):
        with suppress(FileNotFoundError):
            found.update((task / "children").read_text().split())
    return found


async def reaped(pid: int) -> None:
    """Wait until the event loop has reaped a child."""
    while str(pid) in children():  # noqa: ASYNC110 -- the event loop reaps it without an event for us
        await asyncio.sleep(0)


def look_up_request(ledger_uuid: str, rows: int = 1, **changed: object) -> LookUpRequest:
    """Return a request about overdue transactions."""
    made = LookUpRequest(
        ledger_uuid=ledger_uuid,
        sight=None,
        as_of_ms=NOW_MS,
        half_offsets=list(range(rows)),
        transaction_ids=[f"transaction-{number}" for number in range(rows)],
        producer_groups=["orders"] * rows,
        stored_at_ms=[NOW_MS - 60_000] * rows,
        allowed_ms=[1_000] * rows,
    )
    return msgspec.structs.replace(made, **changed)


async def failure(asked: Awaitable[object]) -> Unavailable:
    """Return the error with which a request fails."""
    with pytest.raises(Unavailable) as caught:
        await asked
    return caught.value


async def restarted(process: LookUpProcess) -> int:
    """Ask until the pause after a failure is over; return the id of the new process."""
    while True:
        try:
            await process.known()
        except Unavailable:
            await asyncio.sleep(0)
            continue
        assert process.pid is not None
        return process.pid
