"""A log record is one line or one JSON object, and contains all of its facts."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from escrowmq.cli.config import load
from escrowmq.cli.main import main
from escrowmq.cli.options import settings_of
from escrowmq.model.event_log import event_log
from escrowmq.model.log_lines import (
    BROKER_LEVEL,
    PIPELINE_LEVEL,
    JsonFormatter,
    LineFormatter,
    LogConfig,
)


def test_a_line_has_the_time_the_event_and_its_facts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event_log("escrowmq.x").warning("broker_away", extra={"broker": "a:1", "after_ms": 5})
    (record,) = caplog.records
    record.created = 0.0
    line = LineFormatter().format(record)
    assert line == "1970-01-01T00:00:00Z WARNING escrowmq.x broker_away broker='a:1' after_ms=5"


def test_an_object_has_the_same_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    event_log("escrowmq.x").warning("broker_away", extra={"broker": "a:1\n", "after_ms": 5})
    (record,) = caplog.records
    record.created = 1.2345
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


def test_an_unknown_level_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("serve", "up", "pipeline"):
        with pytest.raises(SystemExit, match="2"):
            main([command, "--data-dir", str(tmp_path), "--log-level", "loud"])
        assert "log.level" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("auto", "level", "logged"),
    [
        (BROKER_LEVEL, "auto", ["warning", "error"]),
        (PIPELINE_LEVEL, "auto", ["info", "warning", "error"]),
        (PIPELINE_LEVEL, "error", ["error"]),
        (BROKER_LEVEL, "debug", ["debug", "info", "warning", "error"]),
    ],
)
def test_the_level_says_which_events_are_logged(auto: str, level: Any, logged: list[str]) -> None:  # noqa: ANN401 - one of the setting's values
    # This needs its own process, because it sets up logging for the whole process.
    program = f"""
from escrowmq.model.log_lines import LogConfig, log_to_stderr
from escrowmq.model.event_log import event_log
log_to_stderr({auto!r}, LogConfig(level={level!r}))
for level in ("debug", "info", "warning", "error"):
    getattr(event_log("escrowmq.x"), level)(level, extra=dict(fact=1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    lines = done.stderr.decode().splitlines()
    assert [line.split(" ")[3:] for line in lines] == [[one, "fact=1"] for one in logged]


def test_the_level_comes_from_flag_environment_or_file(tmp_path: Path) -> None:
    file = tmp_path / "escrowmq.toml"
    file.write_text('[log]\nlevel = "error"\n', encoding="utf-8")
    environ = {"ESCROWMQ_LOG__LEVEL": "info"}
    assert load(environ={}).section(LogConfig).level == "auto"
    assert load(file=file, environ={}).section(LogConfig).level == "error"
    assert load(file=file, environ=environ).section(LogConfig).level == "info"
    flags = settings_of("log", format=None, level="debug")
    assert load(file=file, environ=environ, flags=flags).section(LogConfig).level == "debug"
