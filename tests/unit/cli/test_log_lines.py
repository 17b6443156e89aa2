"""A log record is one line, or one JSON object, with all of its facts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from escrowmq.cli.log_lines import JsonFormatter, LineFormatter
from escrowmq.cli.main import main


def test_a_line_has_the_time_the_event_and_its_facts() -> None:
    record = logging.makeLogRecord(
        {"name": "escrowmq.x", "levelname": "WARNING", "msg": "broker_away", "created": 0.0}
    )
    record.broker = "a:1"
    record.after_ms = 5
    line = LineFormatter().format(record)
    assert line == "1970-01-01T00:00:00Z WARNING escrowmq.x broker_away broker='a:1' after_ms=5"


def test_an_object_has_the_same_on_one_line() -> None:
    record = logging.makeLogRecord(
        {"name": "escrowmq.x", "levelname": "WARNING", "msg": "broker_away", "created": 1.2345}
    )
    record.broker = "a:1\n"
    record.after_ms = 5
    line = JsonFormatter().format(record)
    assert line == (
        '{"ts":"1970-01-01T00:00:01.234Z","level":"WARNING","logger":"escrowmq.x",'
        '"event":"broker_away","broker":"a:1\\n","after_ms":5}'
    )


def test_an_object_takes_any_fact_and_keeps_its_own_names() -> None:
    record = logging.makeLogRecord({"msg": "%s of %d", "args": ("one", 2), "created": 0.0})
    record.level = "NO_MESSAGES"
    record.path = Path("a")
    record.whatever = {1: object}
    told = json.loads(JsonFormatter().format(record))
    assert (told["event"], told["level_"], told["path"]) == (
        "one of 2",
        "NO_MESSAGES",
        str(Path("a")),
    )
    assert told["whatever"] == {"1": "<class 'object'>"}


def test_a_trace_is_in_the_object() -> None:
    with pytest.raises(ValueError, match="no") as raised:
        int("no")
    trace = (raised.type, raised.value, raised.tb)
    record = logging.makeLogRecord({"msg": "failed", "exc_info": trace})
    told = JsonFormatter().format(record)
    assert "\n" not in told
    assert json.loads(told)["trace"].splitlines()[-1].startswith("ValueError: ")


def test_there_are_two_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("serve", "up", "pipeline"):
        with pytest.raises(SystemExit, match="2"):
            main([command, "--data-dir", str(tmp_path), "--log-format", "xml"])
        assert "log.format" in capsys.readouterr().err
