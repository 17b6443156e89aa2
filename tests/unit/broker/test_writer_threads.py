"""Which thread the writer flushes in."""

from __future__ import annotations

import asyncio
import threading

from escrowmq.broker.writer import Writer
from escrowmq.testing import FaultyDisk, ManualClock
from tests.unit.broker.test_writer import held, opened


def flush_threads() -> list[threading.Thread]:
    """Those that only flush."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("flush")]


async def test_a_command_that_is_alone_is_flushed_without_another_thread() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    for number in range(3):
        await held(writer, number)
    assert not flush_threads()
    await writer.close()


async def test_on_a_quick_disk_nothing_is_handed_to_another_thread() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    for _ in range(100):
        writer.flush_times.add(0.0)
    await asyncio.gather(*(held(writer, number) for number in range(10)))
    assert not flush_threads()
    for _ in range(100):
        writer.flush_times.add(1.0)
    await asyncio.gather(*(held(writer, number) for number in range(10, 20)))
    assert flush_threads()
    await writer.close()
