"""A log record as one line: when, how bad, where, which event, and its facts."""

from __future__ import annotations

import logging
import time

#: What every record has; the rest are the event's facts.
_COMMON = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class LineFormatter(logging.Formatter):
    """``2026-11-16T19:20:00Z WARNING escrowmq.pipeline broker_away broker='127.0.0.1:1'``."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the library's name
        """The line, with the facts at its end."""
        facts = [f"{key}={value!r}" for key, value in vars(record).items() if key not in _COMMON]
        return " ".join([super().formatMessage(record), *facts])


def log_to_stderr(level: int) -> None:
    """Log so from here on: our own events from this level on, those of others if they are bad."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("escrowmq").setLevel(level)
