"""What every unit test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Set our log level back: a command that runs in the test's process sets it for good."""
    log = logging.getLogger("escrowmq")
    level = log.level
    yield
    log.setLevel(level)
