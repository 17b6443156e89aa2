"""A parent restarts children that die, and no process outlives it. Uses real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from escrowmq.supervise.supervising import RESTART_S_MAX, restart_wait_s
from tests.unit.supervise.family import DEADLINE_S, KINDS, family, is_gone


def test_a_child_that_was_killed_is_started_again() -> None:
    with family("good") as parent:
        first = parent.pid("good")
        parent.line("good ready")
        os.kill(first, signal.SIGKILL)
        assert "starts again in 0.2 s" in parent.line("good ended, by SIGKILL")
        assert parent.pid("good") != first
        parent.line("good ready")
        parent.process.terminate()
        assert parent.ends() == 0


def test_one_that_dies_each_time_is_started_more_and_more_slowly() -> None:
    with family("failing") as parent:
        for wait in ("0.2", "0.4", "0.8"):
            parent.line("failing ended, exit code 1", f"in {wait} s")
        parent.process.terminate()
        assert parent.ends() == 0


def test_the_wait_before_a_start_doubles_and_has_a_limit() -> None:
    assert [restart_wait_s(failures) for failures in (1, 2, 3, 4)] == [0.2, 0.4, 0.8, 1.6]
    assert restart_wait_s(10_000) == RESTART_S_MAX


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_last_child_first(number: signal.Signals) -> None:
    with family("good", "parent") as parent:
        parent.lines("good ready", "parent ready")
        parent.process.send_signal(number)
        parent.line(f"up stopping on {number.name}")
        parent.line("parent ended, exit code 0")
        parent.line("good ended, exit code 0")
        assert parent.ends() == 0


def test_children_end_with_a_parent_that_was_killed() -> None:
    with family("good", "good") as parent:
        for _ in range(2):
            parent.line("good ready")
        parent.process.kill()
        parent.process.wait()
        # At the end of the block, `family` checks that each of these processes is gone.
        assert len(parent.pids) == 3


def test_processes_that_a_child_started_end_with_it() -> None:
    with family("parent") as parent:
        child = parent.pid("parent")
        left = int(parent.line("parent left").split()[2])
        parent.line("parent ready")
        os.kill(child, signal.SIGKILL)
        assert is_gone(left)
        parent.line("parent ready")
        parent.process.terminate()
        assert parent.ends() == 0


def test_one_that_does_not_stop_in_time_is_killed() -> None:
    with family("stubborn", STOP_S_MAX="0.1") as parent:
        parent.pid("stubborn")
        parent.line("stubborn ready")
        parent.process.terminate()
        parent.line("stubborn does not stop in time")
        parent.line("stubborn ended, by SIGKILL")
        assert parent.ends() == 0


def test_a_second_signal_kills_at_once() -> None:
    with family("stubborn") as parent:
        parent.pid("stubborn")
        parent.line("stubborn ready")
        parent.process.send_signal(signal.SIGINT)
        parent.line("up stopping")
        parent.process.send_signal(signal.SIGINT)
        parent.line("stubborn killed")
        assert parent.ends() == 0


def test_a_vital_child_that_refuses_to_start_ends_all() -> None:
    with family("good", "refusing") as parent:
        parent.line("refusing cannot be started")
        assert parent.ends() == 2


def test_a_child_ends_with_its_pipe_even_if_another_process_is_its_parent() -> None:
    """Closing the pipe works on every operating system."""
    command = [sys.executable, "-c", KINDS["good"], str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(DEADLINE_S) == 0


def test_a_child_whose_parent_was_gone_before_it_looked_does_not_start() -> None:
    command = [sys.executable, "-c", KINDS["good"], "1"]
    began_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (1, "the parent is gone\n")
    assert time.monotonic() - began_s < DEADLINE_S
