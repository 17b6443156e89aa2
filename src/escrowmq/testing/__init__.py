"""Test doubles for us and our users: a broker, a clock, a disk, an engine and a settler.

None of them is a mock: each behaves like the real part, and the test controls time and failures.
Each name below is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.lazy_names import importer

if TYPE_CHECKING:
    from escrowmq.testing.calls import message
    from escrowmq.testing.clock import ManualClock
    from escrowmq.testing.engine import Engine
    from escrowmq.testing.faulty_disk import FaultyDisk
    from escrowmq.testing.in_process import AsyncInProcessBroker, InProcessBroker
    from escrowmq.testing.joined import join_test
    from escrowmq.testing.memory_engine import MemoryEngine
    from escrowmq.testing.memory_table import MemoryTable
    from escrowmq.testing.settler import AnsweringEngine, Settler

__all__ = [
    "AnsweringEngine",
    "AsyncInProcessBroker",
    "Engine",
    "FaultyDisk",
    "InProcessBroker",
    "ManualClock",
    "MemoryEngine",
    "MemoryTable",
    "Settler",
    "join_test",
    "message",
]

_HOMES = {
    "AnsweringEngine": "settler",
    "AsyncInProcessBroker": "in_process",
    "Engine": "engine",
    "FaultyDisk": "faulty_disk",
    "InProcessBroker": "in_process",
    "ManualClock": "clock",
    "MemoryEngine": "memory_engine",
    "MemoryTable": "memory_table",
    "Settler": "settler",
    "join_test": "joined",
    "message": "calls",
}
__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
