"""Fixtures for users' tests; pytest finds them by itself once EscrowMQ is installed.

pytest loads this in every project whose environment has us, so it imports nothing until a test
asks for a fixture.
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
    """The broker's clock; override this fixture to begin at another time."""
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
