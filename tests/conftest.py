"""Fixtures for every test."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Take Ctrl-C, also where a shell runs the tests in the background and so ignores it.

    Programs that tests start inherit what this process ignores.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def default_log_level() -> Iterator[None]:
    """Start each test with the log level that a program has before it sets one.

    A command that runs in the tests' process sets the level for good, even from a fixture that
    outlives its test.
    """
    log = logging.getLogger("escrowmq")
    level = log.level
    log.setLevel(logging.NOTSET)
    yield
    log.setLevel(level)
