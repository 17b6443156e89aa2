"""With ``-o json``, every command prints its schema of ``cli/shapes/schemas.py``.

A new command fails here until it is in ``SCHEMAS`` and has a run in ``RUNS`` of
``schema_world.py``. If it needs Spark, ``ELSEWHERE`` must name a test that calls ``checked``.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from escrowmq.cli.main import COMMANDS, app_for, main
from escrowmq.cli.shapes.schemas import SCHEMAS
from tests.unit.cli.schema_check import checked
from tests.unit.cli.schema_world import RUNS, World
from tests.unit.cli.test_up import ANY_PORT, MODULE
from tests.unit.repository import ROOT
from tests.unit.supervise.family import family
from tools.reference.output import schema_document

#: Commands that need Spark or run until a signal, and the test that checks their output.
ELSEWHERE = {
    "audit": "tests/spark/test_audit_command.py",
    "demo": "tests/unit/cli/test_demo.py",
    "lake query": "tests/spark/test_lake_commands.py",
    "lake replay": "tests/spark/test_lake_commands.py",
    "pipeline": "tests/spark/test_pipeline_json.py",
    "serve": "tests/unit/cli/test_schemas.py",
    "txn watch": "tests/unit/cli/test_schemas.py",
    "up": "tests/unit/cli/test_schemas.py",
}


def leaves(prefix: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a click command
    """Yield every command below this one with its full name."""
    below = getattr(command, "commands", None)
    if below is None:
        yield prefix, command
        return
    for name, one in below.items():
        yield from leaves(f"{prefix} {name}".strip(), one)


def all_commands() -> dict[str, Any]:
    """Return every command by its full name."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        loaded = get_command(app_for([name], {})).commands[name]  # type: ignore[attr-defined]
        found |= dict(leaves(name, loaded))
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World.made(tmp_path_factory.mktemp("world")) as made:
        yield made


def test_every_command_has_a_schema() -> None:
    described = {words.partition(" --")[0] for words in SCHEMAS}
    missing = sorted(all_commands().keys() ^ described)
    assert missing == [], (
        "see the docstring of cli/shapes/broker_shapes.py: each command needs a shape"
    )


def test_every_command_takes_the_option() -> None:
    without = [
        words
        for words, command in all_commands().items()
        if not any("-o" in parameter.opts for parameter in command.params)
    ]
    assert without == [], "give it an OutputOption, or a LineOutputOption"


def test_every_schema_is_compared_with_real_output() -> None:
    assert sorted(RUNS.keys() | ELSEWHERE.keys()) == sorted(SCHEMAS), "add a run to RUNS"
    for words, path in ELSEWHERE.items():
        assert f'checked("{words}"' in (ROOT / path).read_text(encoding="utf-8"), words


@pytest.mark.parametrize("words", RUNS)
def test_output_has_its_shape(
    words: str, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for arguments in RUNS[words]:
        with pytest.raises(SystemExit) as left:
            main([*world.filled(words, arguments), "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code in (0, 1), told.err
        assert checked(words, told.out) not in ([], {}), "show that it prints something"
        for line in told.err.splitlines():
            checked("note", line)


def lines_of(count: int, *arguments: str) -> str:
    """Return the first lines of a command that runs until Ctrl-C."""
    with subprocess.Popen(
        [sys.executable, "-m", "escrowmq.cli.main", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told = "".join(process.stdout.readline() for _ in range(count))
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
    return told


def test_a_watch_prints_a_line_for_each_look(world: World) -> None:
    told = lines_of(2, "txn", "watch", "-b", world.broker.address, "--every", "0.2", "-o", "json")
    first, second = checked("txn watch", told)
    assert first["at_ms"] < second["at_ms"]
    assert {row["id"] for row in first["transactions"]} >= {"kept-1", "kept-2"}


def test_a_broker_says_where_it_is(tmp_path: Path) -> None:
    told = lines_of(1, "serve", "--data-dir", str(tmp_path / "data"), *ANY_PORT, "-o", "json")
    (ready,) = checked("serve", told)
    assert (ready["event"], ready["http"], ready["has_pipeline"]) == ("ready", None, False)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", ready["broker"])


def test_up_says_what_happens(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with family("--data-dir", data, *ANY_PORT, "-o", "json", module=MODULE) as up:
        (first,) = checked("up", up.line('"up"'))
        (ready,) = checked("up", up.line('"broker"', "ready"))
        assert first["facts"]["data"] == data
        assert isinstance(ready["facts"]["pid"], int)
        assert ready["facts"]["broker"].startswith("127.0.0.1:")
        up.process.send_signal(signal.SIGINT)
        assert up.ends() == 0


def test_an_error_is_json_if_the_output_is(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, exit_code in (
        (["topic", "list", "-b", "127.0.0.1:1", "-o", "json"], "broker_unreachable", 3),
        (["topic", "list", "--output=json", "-b", "nonsense"], "address_illegal", 2),
        (["topic", "list", "-ojson", "--odd"], "bad_arguments", 2),
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        told = capsys.readouterr()
        (error,) = checked("error", told.err)
        assert (told.out, left.value.code) == ("", exit_code)
        assert (error["code"], error["exit_code"]) == (code, exit_code)
        assert error["remedy"]


def properties(node: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - JSON
    if isinstance(node, dict):
        yield from node.get("properties", {}).items() if "title" in node else ()
        for below in node.values():
            yield from properties(below)
    elif isinstance(node, list):
        for below in node:
            yield from properties(below)


def test_keys_are_snake_case_and_say_their_unit() -> None:
    document = json.loads(schema_document())
    assert set(SCHEMAS) <= document["properties"].keys()
    keys = dict(properties(document["$defs"]))
    assert len(keys) > 100
    assert [name for name in keys if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)] == []
    assert [name for name in keys if re.search(r"_ms_|_s$|seconds|_bytes_(?!max)", name)] == []
