"""Fixtures for users' tests. pytest finds them automatically once EscrowMQ is installed.

pytest loads this module in every project that has EscrowMQ in its environment, so it imports
nothing of EscrowMQ until a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from escrowmq.testing.clock import ManualClock
    from escrowmq.testing.in_process import AsyncInProcessBroker, InProcessBroker


@pytest.fixture
def escrowmq_clock() -> ManualClock:
    """The broker's clock. Override this fixture to start at another time."""
    import time

    from escrowmq.testing.clock import ManualClock

    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def escrowmq_broker(escrowmq_clock: ManualClock) -> Iterator[InProcessBroker]:
    """A broker for this test alone."""
    from escrowmq.testing.in_process import InProcessBroker

    with InProcessBroker(clock=escrowmq_clock) as broker:
        yield broker


@pytest.fixture
def escrowmq_async_broker(escrowmq_broker: InProcessBroker) -> AsyncInProcessBroker:
    """The same broker, for a test with an event loop."""
    from escrowmq.testing.in_process import AsyncInProcessBroker

    return AsyncInProcessBroker(escrowmq_broker)
