"""Which thread flushes for the writer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from escrowmq.broker.write.writer import Writer
from escrowmq.store.store import Store
from escrowmq.testing import FaultyDisk, ManualClock
from tests.unit.broker.test_writer import held, opened


@pytest.fixture
def flushers(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """The threads that have flushed a store."""
    seen: set[threading.Thread] = set()
    flush = Store.flush

    def seen_flush(store: Store) -> None:
        seen.add(threading.current_thread())
        flush(store)

    monkeypatch.setattr(Store, "flush", seen_flush)
    return seen


async def test_a_command_that_is_alone_is_flushed_without_another_thread(
    flushers: set[threading.Thread],
) -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    for number in range(3):
        await held(writer, number)
    assert flushers == {threading.current_thread()}
    await writer.close()


async def test_on_a_quick_disk_nothing_is_handed_to_another_thread(
    flushers: set[threading.Thread],
) -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    for _ in range(100):
        writer.flush_times.add(0.0)
    await asyncio.gather(*(held(writer, number) for number in range(10)))
    assert flushers == {threading.current_thread()}
    for _ in range(100):
        writer.flush_times.add(1.0)
    await asyncio.gather(*(held(writer, number) for number in range(10, 20)))
    assert len(flushers) == 2
    await writer.close()
