"""``escrowmq up`` with a real broker. tests/spark runs it with a real pipeline."""

from __future__ import annotations

import inspect
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from escrowmq.cli.main import main
from escrowmq.cli.run.serve import serve
from escrowmq.cli.run.up import STARVED_NICENESS, may_starve
from escrowmq.cli.run.up import up as up_command
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.priority import LEFT_OVER
from tests.unit.cli.test_serve import serving
from tests.unit.supervise.family import family, is_gone
from tests.unit.supervise.hungry import busy_processor

MODULE = "tests.unit.cli.up_stand_in"
ANY_PORT = ("--port", "0", "--name-port", "0", "--grpc-port", "-1")
BROKER = re.compile(r"broker=(\S+)")


def broker_in(line: str) -> str:
    found = BROKER.search(line)
    assert found is not None
    return found[1]


def test_it_has_the_flags_of_serve() -> None:
    def flags(command: Callable[..., None]) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            kind, option = get_args(parameter.annotation)
            found[name] = (kind, parameter.default, vars(option))
        return found

    assert flags(up_command) == flags(serve)


def test_it_says_where_everything_is(tmp_path: Path) -> None:
    with family("--data-dir", str(tmp_path), *ANY_PORT, module=MODULE) as up:
        first = up.line("up ")
        assert f"data={tmp_path}" in first
        assert f"lake={tmp_path}/lake" in first
        address = broker_in(up.line("broker ", " ready name="))
        assert f" brokers={address} " in up.line("pipeline ", " ready")
        up.process.send_signal(signal.SIGINT)
        up.lines("pipeline  ended, exit code 0", "broker    ended, exit code 0")
        assert up.ends() == 0


def test_a_broker_that_died_comes_back_where_it_was(tmp_path: Path) -> None:
    with family("--data-dir", str(tmp_path), *ANY_PORT, module=MODULE) as up:
        broker = up.pid("broker  ")
        address = broker_in(up.line("ready name="))
        up.line("pipeline", "ready")
        os.kill(broker, signal.SIGKILL)
        up.line("broker    ended, by SIGKILL")
        assert broker_in(up.line("ready name=")) == address
        up.process.terminate()
        assert up.ends() == 0


def test_if_its_port_was_taken_meanwhile_the_pipeline_hears_of_the_new_one(tmp_path: Path) -> None:
    with family("--data-dir", str(tmp_path), *ANY_PORT, module=MODULE) as up:
        broker = up.pid("broker  ")
        address = broker_in(up.line("ready name="))
        pipeline = up.pid("pipeline")
        up.line("pipeline", "ready")
        # Stop the parent, so that it cannot start a new broker before this test takes the port.
        up.process.send_signal(signal.SIGSTOP)
        os.kill(broker, signal.SIGKILL)
        assert is_gone(broker)
        with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
            up.process.send_signal(signal.SIGCONT)
            other = broker_in(up.line("ready name="))
            assert other != address
            up.line("pipeline", f"ready brokers={other} ")
        assert is_gone(pipeline)
        up.process.terminate()
        assert up.ends() == 0


def test_a_pipeline_that_starves_steps_less_far_back_for_a_while(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path), *ANY_PORT)
    with (
        busy_processor() as processor,
        family(*flags, module=MODULE, HUNGRY_ON=str(processor), LOOK_S="0.3", STARVED_S="1") as up,
    ):
        up.line("pipeline", "ready", f"niceness={LEFT_OVER}")
        up.line("pipeline  starved, waited=", f"niceness={STARVED_NICENESS} for 1 s")
        up.line("pipeline  ended, by SIGKILL; starts again in 0.2 s")
        up.line("pipeline", "ready", f"niceness={STARVED_NICENESS}")
        up.line("pipeline  has its configured niceness again")
        up.line("pipeline  ended, exit code 0; starts again in 0.2 s")
        up.line("pipeline", "ready", f"niceness={LEFT_OVER}")
        up.process.terminate()
        assert up.ends() == 0


@pytest.mark.parametrize(
    ("settings", "may_it"),
    [
        ({}, True),
        ({"niceness": STARVED_NICENESS + 1}, True),
        ({"niceness": STARVED_NICENESS}, False),
        ({"niceness": 0}, False),
        ({"master": "spark://h:7077", "lake_uri": "/lake", "checkpoint_uri": "/lake"}, False),
    ],
)
def test_only_a_process_with_a_very_low_priority_may_starve(
    settings: dict[str, Any], *, may_it: bool
) -> None:
    assert may_starve(PipelineConfig(**settings)) is may_it


def test_a_broker_that_cannot_be_started_is_said_at_once(tmp_path: Path) -> None:
    with (
        serving(tmp_path),  # Another broker holds the lock.
        family("--data-dir", str(tmp_path), *ANY_PORT, module=MODULE) as up,
    ):
        up.line("broker    cannot be started, exit code 5")
        assert up.ends() == 5


def test_wrong_settings_are_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["up", "--data-dir", str(tmp_path), "--set", "pipeline.master=spark://h:7077"])
    assert "pipeline.lake_uri" in capsys.readouterr().err


def test_without_spark_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; from escrowmq.cli.main import main; "
        f"main(['up', '--data-dir', {str(tmp_path)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert 'spark_missing: the pipeline needs Spark: pip install "escrowmq[spark]"' in done.stderr
