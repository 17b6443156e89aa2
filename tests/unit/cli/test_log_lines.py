"""A log record is one line with all of its facts."""

from __future__ import annotations

import logging

from escrowmq.cli.log_lines import LineFormatter


def test_a_line_has_the_time_the_event_and_its_facts() -> None:
    record = logging.makeLogRecord(
        {"name": "escrowmq.x", "levelname": "WARNING", "msg": "broker_away", "created": 0.0}
    )
    record.broker = "a:1"
    record.after_ms = 5
    line = LineFormatter().format(record)
    assert line == "1970-01-01T00:00:00Z WARNING escrowmq.x broker_away broker='a:1' after_ms=5"
