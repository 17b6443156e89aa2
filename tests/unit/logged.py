"""Access to the events in a test's log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def event_of(record: logging.LogRecord) -> str:
    return str(vars(record).get("event", record.getMessage()))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [event_of(record) for record in caplog.records]


def facts(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if event_of(record) == event]
