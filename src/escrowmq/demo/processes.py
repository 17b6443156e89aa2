"""The processes of the demo: each leads its own process group, and all end with this one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import msgspec

from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.spark.parent import end_with_parent

STOP_S = 30.0
READY_S = 120.0


class ChildTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a child process, given as JSON on its command line."""

    #: The id of the process that starts the child.
    parent: int = msgspec.field(default_factory=os.getpid)

    @classmethod
    def take(cls, given: str) -> Self:
        """Read this process's task; from now on this process ends with its parent."""
        task = msgspec.json.decode(given, type=cls)
        end_with_parent(task.parent)
        return task


def demo_failed(what: str, log: Path) -> Unavailable:
    """Make the error for a failed process of the demo, with the last line of its log."""
    last = last_line(log)
    return Unavailable("demo_failed", f"{what}: {last}" if last else what)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
    return ""


class Processes:
    """Starts and stops processes. Use it from the main thread only."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[str]] = []
        # ESCROWMQ_ variables in the caller's shell configure other brokers.
        self._environ = {
            name: value for name, value in os.environ.items() if not name.startswith("ESCROWMQ_")
        }

    def log(self, name: str) -> Path:
        """Return the file that a process's standard error goes to."""
        return self._logs / f"{name}.log"

    def start(
        self, name: str, words: Sequence[str], *, stdout: int | IO[str] = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a process; its standard input is a pipe that closes when this process ends."""
        with self.log(name).open("a", encoding="utf-8") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own programs
                [sys.executable, "-m", *words],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=errors,
                text=True,
                env=self._environ,
                process_group=0,
            )
        self._running.append(process)
        return process

    def start_with(self, name: str, task: ChildTask) -> subprocess.Popen[str]:
        """Start the module of this task."""
        return self.start(name, [type(task).__module__, msgspec.json.encode(task).decode()])

    def stop(self, *processes: subprocess.Popen[str]) -> None:
        """Stop processes with SIGTERM; after ``STOP_S`` seconds, kill them and their groups."""
        for process in processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + STOP_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            if process in self._running:
                self._running.remove(process)

    def stop_all(self) -> None:
        """Stop all running processes, the last one first; ignore Ctrl-C meanwhile."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in reversed(list(self._running)):
                self.stop(process)
        finally:
            signal.signal(signal.SIGINT, before)


class BrokerProcess:
    """``escrowmq serve`` as a child process, which can be killed and started again."""

    def __init__(self, processes: Processes, folder: Path, config: Path) -> None:
        words = ["escrowmq.cli.main", "serve", "--data-dir", str(folder), "--config", str(config)]
        self._words = [*words, "--parent", str(os.getpid())]
        self._processes = processes
        self._process = self._start()
        places = self._await_ready()
        self.address, self.name_server = places["broker"], places["name"]

    @property
    def log(self) -> Path:
        """The file that the broker's log goes to."""
        return self._processes.log("broker")

    def kill(self) -> None:
        """Send SIGKILL to the broker."""
        self._process.kill()

    def restart(self) -> None:
        """Start a killed broker again at its addresses, and wait until it serves."""
        self._processes.stop(self._process)
        ports = [place.rpartition(":")[2] for place in (self.address, self.name_server)]
        self._process = self._start("--port", ports[0], "--name-port", ports[1])
        self._await_ready()

    def _start(self, *options: str) -> subprocess.Popen[str]:
        return self._processes.start("broker", [*self._words, *options], stdout=subprocess.PIPE)

    def _await_ready(self) -> dict[str, str]:
        """Wait for the ready line, and return its facts."""
        assert self._process.stdout is not None
        is_told = select.select([self._process.stdout], [], [], READY_S)[0]
        word, *facts = (self._process.stdout.readline() if is_told else "").split() or [""]
        if word != "ready":
            raise demo_failed("the broker does not start", self.log)
        return dict(fact.split("=", 1) for fact in facts)


@dataclass(frozen=True, kw_only=True)
class DemoBroker:
    """A running broker, and the processes around it."""

    processes: Processes
    broker: BrokerProcess
