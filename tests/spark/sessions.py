"""Processes by their session, from /proc.

A process that is started in its own session can be ended with all its descendants: Spark's Python
workers leave their process group, but no process leaves a session by accident.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_STATE, _SESSION = 0, 3
_LOCAL, _INODE = 1, 9


def processes_of(session: int) -> list[int]:
    """Return the processes that run in this session."""
    return [pid for pid, fields in _processes() if int(fields[_SESSION]) == session]


def kill_session(session: int) -> None:
    """Kill all processes of a session; if this process is one of them, it dies last."""
    ours = os.getpid()
    while others := [pid for pid in processes_of(session) if pid != ours]:
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if os.getsid(0) == session:
        os.kill(ours, signal.SIGKILL)


def holds_port(session: int, port: int) -> bool:
    """Return whether a process of the session holds this end of a connection."""
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = {f"socket:[{one[_INODE]}]" for one in connections if one[_LOCAL][-4:] == f"{port:04X}"}
    return any(not ends.isdisjoint(_descriptors(pid)) for pid in processes_of(session))


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield each process that has not ended, with the kernel's fields after its name."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name is in parentheses and may contain spaces.
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[_STATE] not in "ZX":
                yield int(place.name), fields


def _descriptors(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for place in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(place.readlink()))
    return found
