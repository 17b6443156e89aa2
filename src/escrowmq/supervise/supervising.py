"""Supervises a few child processes: starts them, restarts them, and stops them at the end.

Each child leads its own process group. So Ctrl-C reaches only the parent, which then stops the
children, the last one first; ending the group also ends processes that a child leaves behind.
Children end with the parent (``pipeline/spark/parent.py``): they get its process id, and a pipe as
standard input.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

#: Exit codes that a restart cannot fix: bad settings, an unusable store.
REFUSED = (2, 5)

#: The wait before the first restart; each further failure doubles it, up to the maximum.
RESTART_S = 0.2
RESTART_S_MAX = 30.0
#: A child that ran this long counts as healthy, and its next failure as the first.
HEALTHY_S = 60.0
#: The supervisor gives up after a vital child failed this often in a row before it was ready.
REFUSALS_MAX = 5
#: How long a child may take to stop after SIGTERM before it is killed.
STOP_S_MAX = 30.0
#: Interval at which ``on_look`` is called.
LOOK_S = 15.0


def restart_wait_s(failures: int) -> float:
    """Return how long to wait before a start, after this many failures in a row."""
    # Bound the exponent: a large power of two overflows a float.
    return min(RESTART_S * 2.0 ** min(failures - 1, 30), RESTART_S_MAX)


@dataclass(slots=True, kw_only=True, eq=False)
class Child:
    """A supervised child process, across its restarts."""

    name: str
    #: Returns the command line, or None if it is too early to start.
    command: Callable[[], Sequence[str] | None]
    #: Called with each line that the child prints; returns whether the child is ready.
    on_line: Callable[[str], bool]
    #: Whether the supervisor stops if this child cannot be started.
    is_vital: bool = False
    #: Called with the process id every ``LOOK_S`` seconds.
    on_look: Callable[[int], None] | None = None
    process: subprocess.Popen[str] | None = None
    is_ready: bool = False
    was_ever_ready: bool = False
    failures: int = 0
    refusals: int = 0
    started_at_s: float = 0.0
    #: The earliest time of the next start.
    starts_at_s: float = 0.0
    looks_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    process: subprocess.Popen[str]
    text: str


@dataclass(frozen=True, slots=True)
class _Ended:
    process: subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


class Supervisor:
    """Runs children until it is told to stop. Use it from the main thread only.

    ``say`` is called with a child's name and one line about what happened to it.
    """

    def __init__(self, children: Sequence[Child], say: Callable[[str, str], None]) -> None:
        self._children = children
        self._say = say
        self._events: queue.SimpleQueue[_Line | _Ended | _Signalled] = queue.SimpleQueue()
        self._is_stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or a vital child that cannot start; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._is_stopping:
            self._start_those_due()
            self._look_at_those_due()
            self._handle(self._next_event(self._wait_s()))
        # Stop the last one first: it may use the others until it ends.
        for child in reversed(self._children):
            self._stop(child)
        return self._exit_code

    def restart(self, child: Child, by: signal.Signals = signal.SIGTERM) -> None:
        """Send the child a signal if it runs; it restarts after the shortest wait."""
        child.failures = 0
        child.started_at_s = time.monotonic()
        _send(child, by)

    # Starting.

    def _start_those_due(self) -> None:
        for child in self._children:
            if child.process is None and child.starts_at_s <= time.monotonic():
                command = child.command()
                if command is not None:
                    self._start(child, command)

    def _start(self, child: Child, command: Sequence[str]) -> None:
        process = subprocess.Popen(  # noqa: S603 -- our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        child.process, child.is_ready = process, False
        child.started_at_s = time.monotonic()
        child.looks_at_s = child.started_at_s + LOOK_S
        self._say(child.name, f"started pid={process.pid}")
        for watch in (self._read, self._await_end):
            threading.Thread(target=watch, args=(process,), daemon=True).start()

    def _look_at_those_due(self) -> None:
        for child in self._watched():
            if child.looks_at_s <= time.monotonic():
                child.looks_at_s = time.monotonic() + LOOK_S
                assert child.on_look is not None
                assert child.process is not None
                child.on_look(child.process.pid)

    def _watched(self) -> list[Child]:
        return [one for one in self._children if one.process is not None and one.on_look]

    # Events, most of them from other threads.

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        # Reads until every writer has closed the pipe, which may be after the process has ended.
        with process.stdout as lines:
            for line in lines:
                self._events.put(_Line(process, line.rstrip("\n")))

    def _await_end(self, process: subprocess.Popen[str]) -> None:
        # Do not reap here: before it is reaped, the system cannot reuse the process and group ids.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(_Ended(process))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._events.put(_Signalled(number))

    def _wait_s(self) -> float | None:
        waits = [child.starts_at_s for child in self._children if child.process is None]
        # A child whose command is still None waits for an event, not for a time.
        waits = [wait for wait in waits if wait > time.monotonic()]
        waits += [child.looks_at_s for child in self._watched()]
        return min(waits) - time.monotonic() if waits else None

    def _next_event(self, wait_s: float | None) -> _Line | _Ended | _Signalled | None:
        try:
            return self._events.get(timeout=None if wait_s is None else max(wait_s, 0.0))
        except queue.Empty:
            return None

    def _handle(self, event: _Line | _Ended | _Signalled | None) -> None:
        if isinstance(event, _Signalled):
            self._say("up", f"stopping on {signal.Signals(event.number).name}")
            self._is_stopping = True
        elif event is not None:
            child = next((one for one in self._children if one.process is event.process), None)
            if child is not None:
                self._on_line(child, event) if isinstance(event, _Line) else self._on_end(child)

    def _on_line(self, child: Child, line: _Line) -> None:
        if child.on_line(line.text) and not child.is_ready:
            child.is_ready = child.was_ever_ready = True
            child.refusals = 0

    def _on_end(self, child: Child) -> None:
        code = self._reap(child)
        was_healthy = time.monotonic() - child.started_at_s >= HEALTHY_S
        child.failures = 1 if was_healthy else child.failures + 1
        if code > 0 and not child.is_ready:
            child.refusals += 1
            is_hopeless = code in REFUSED and not child.was_ever_ready
            if child.is_vital and (is_hopeless or child.refusals >= REFUSALS_MAX):
                self._say(child.name, f"cannot be started, {_how(code)}")
                self._is_stopping, self._exit_code = True, code
                return
        wait_s = restart_wait_s(child.failures)
        child.starts_at_s = time.monotonic() + wait_s
        self._say(child.name, f"ended, {_how(code)}; starts again in {wait_s:g} s")

    # Stopping.

    def _stop(self, child: Child) -> None:
        _send(child, signal.SIGTERM)
        until = time.monotonic() + STOP_S_MAX
        while child.process is not None:
            event = self._next_event(until - time.monotonic())
            if event is None or isinstance(event, _Signalled):
                self._say(child.name, "does not stop in time" if event is None else "killed")
                os.killpg(child.process.pid, signal.SIGKILL)
                until += STOP_S_MAX
            elif isinstance(event, _Ended):
                for one in self._children:
                    if one.process is event.process:
                        self._say(one.name, f"ended, {_how(self._reap(one))}")

    def _reap(self, child: Child) -> int:
        """Kill what an ended process left behind, and return its exit code."""
        process = child.process
        assert process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        child.process = None
        return code


def _send(child: Child, number: signal.Signals) -> None:
    if child.process is not None:
        # Popen.send_signal would reap the process.
        os.kill(child.process.pid, number)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
