"""``escrowmq up`` with a real pipeline: dead processes are restarted, and none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.broker.wire import eventually
from tests.unit.supervise.family import Family, children_of, family, is_gone

#: No other process in a test needs the CPU first.
QUICK = "pipeline.niceness=0"


@contextmanager
def up(data: Path) -> Iterator[Family]:
    ports = ("--port", "0", "--name-port", "0", "--grpc-port", "-1")
    flags = ("--data-dir", str(data), *ports, "--set", QUICK)
    # Use the packaged Java, even if the host has one.
    with family("up", *flags, module="escrowmq.cli.main", JAVA_HOME="") as parent:
        yield parent


def java_of(driver: int) -> int | None:
    """Return the driver's Java process, or None if it has not started."""
    for pid in children_of(driver):
        if Path(f"/proc/{pid}/comm").read_text() == "java\n":
            return pid
    return None


def test_a_pipeline_whose_java_died_is_started_again_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    with up(tmp_path) as parent:
        driver = parent.pid("pipeline")
        parent.line("pipeline  ready")
        java = java_of(driver)
        assert java is not None
        os.kill(java, signal.SIGKILL)
        parent.line("pipeline  ended, exit code 7")
        assert is_gone(driver)
        parent.line("pipeline  ready")
        parent.pids |= set(children_of(parent.process.pid))
        parent.process.send_signal(signal.SIGINT)
        parent.lines("pipeline  ended, exit code 0", "broker    ended, exit code 0")
        assert parent.ends() == 0


@pytest.mark.parametrize("victim", ["parent", "driver"])
async def test_java_ends_with_its_driver_and_both_with_the_parent(
    tmp_path: Path, victim: str
) -> None:
    with up(tmp_path) as parent:
        driver = parent.pid("pipeline")
        await eventually(lambda: java_of(driver))
        before = set(children_of(driver))
        parent.pids |= before
        os.kill(driver if victim == "driver" else parent.process.pid, signal.SIGKILL)
        assert [pid for pid in before if not is_gone(pid)] == []
        if victim == "driver":
            parent.line("pipeline  ended, by SIGKILL")
            parent.process.terminate()
            assert parent.ends() == 0
