"""A process that ends with this one, and the kernel's figures about it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.interop.errors import ProcessDied

LAUNCHER = Path(__file__).with_name("die_with_parent.py")
STOP_TIMEOUT_S = 15
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory and CPU time that a process has used so far."""

    resident_bytes: int
    anonymous_bytes: int
    cpu_ms: int

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            resident_bytes=self.resident_bytes + other.resident_bytes,
            anonymous_bytes=self.anonymous_bytes + other.anonymous_bytes,
            cpu_ms=self.cpu_ms + other.cpu_ms,
        )


class Child:
    """A child process with piped standard input and output, and standard error in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        launcher = [sys.executable, "-S", "-E", str(LAUNCHER), str(os.getpid())]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*launcher, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                # A session of its own, so that its children can be ended with it.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def died(self) -> ProcessDied:
        """Return the error for a process whose output has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        return ProcessDied(self.name, self._process.returncode, self.log)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Wait until the process ends by itself; return its exit status."""
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """Ask the process to end, and kill it after a timeout; return its exit status."""
        if self.is_running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        # A pipe cannot be flushed when its reader is gone.
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def usage(self) -> Usage:
        return usage(self.pid)


def usage(pid: int) -> Usage:
    """Return the memory and CPU time of a running process, from /proc."""
    place = Path("/proc") / str(pid)
    status = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    # Split after the name in parentheses, which may contain spaces. User and system time are the
    # 12th and 13th fields.
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Usage(
        resident_bytes=int(status["VmRSS"].split()[0]) * KIB,
        anonymous_bytes=int(status["RssAnon"].split()[0]) * KIB,
        cpu_ms=ticks * 1000 // os.sysconf("SC_CLK_TCK"),
    )
