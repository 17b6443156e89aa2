"""Every event that EscrowMQ logs has its facts in its text, with any formatter."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.model.event_log import RECORD_ATTRIBUTES, event_log
from tests.unit.repository import modules, parse, relative

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}

#: Modules that use ``logging`` directly, each with the reason.
PLAIN_LOGGING = {
    "src/escrowmq/model/log_lines.py": "sets up the log of a command",
    "src/escrowmq/cli/main.py": "keeps commands quiet unless they set a log up",
    "src/escrowmq/model/event_log.py": "is the one mechanism",
    "src/escrowmq/pipeline/lake/query.py": "silences another library",
    "src/escrowmq/pipeline/service/running.py": "silences another library",
}


def logging_calls() -> Iterator[tuple[Path, ast.Call]]:
    """Yield every call of a logging method of ``log`` in the source."""
    for path in modules("src"):
        for node in ast.walk(parse(path)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attr)):
                    if attr in LEVELS:
                        yield path, node


CALLS = [pytest.param(call, id=f"{relative(path)}:{call.lineno}") for path, call in logging_calls()]


def extra_of(call: ast.Call) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == "extra"), None)


def names_of(extra: ast.expr) -> list[str]:
    """Return the facts that a call names itself, without those in ``**facts``."""
    keys = extra.keys if isinstance(extra, ast.Dict) else []
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def test_there_is_one_way_to_log() -> None:
    found = {
        relative(path)
        for path in modules("src")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Import) and any(alias.name == "logging" for alias in node.names)
    }
    assert found == PLAIN_LOGGING.keys(), "use escrowmq.model.event_log.event_log"
    assert len(CALLS) > 60


@pytest.mark.parametrize("call", CALLS)
def test_an_event_renders_its_facts_under_a_plain_formatter(
    call: ast.Call, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(call.args) == 1, "facts go into extra"
    extra = extra_of(call)
    assert extra is not None, "an event without facts says too little"
    names = names_of(extra) or ["unnamed"]
    assert not RECORD_ATTRIBUTES.intersection(names), "logging uses that name itself"
    event = ast.unparse(call.args[0]).strip("'")
    event_log("escrowmq.tests").warning(event, extra={name: f"<{name}>" for name in names})
    (record,) = caplog.records
    text = logging.Formatter().format(record)
    assert text == " ".join([event, *(f"{name}='<{name}>'" for name in names)])
    assert [vars(record)[name] for name in names] == [f"<{name}>" for name in names]
