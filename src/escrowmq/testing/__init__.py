"""Doubles for tests, ours and our users': a clock, a disk, a table, an engine and a settler.

Nothing here is a mock: each does the real thing, with time and failure in the test's hands.
"""

from escrowmq.testing.calls import message
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.engine import Engine
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.memory_engine import MemoryEngine
from escrowmq.testing.memory_table import MemoryTable
from escrowmq.testing.settler import AnsweringEngine, Settler

__all__ = [
    "AnsweringEngine",
    "Engine",
    "FaultyDisk",
    "ManualClock",
    "MemoryEngine",
    "MemoryTable",
    "Settler",
    "message",
]
