"""A parent process with child processes, for the tests of supervision.

    python -m tests.unit.supervise.family KIND...

Each KIND starts one child. The parent prints one line per event, as ``escrowmq up`` does.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from escrowmq.supervise import supervising
from escrowmq.supervise.supervising import Child, Supervisor
from tests.unit.repository import ROOT

DEADLINE_S = 20.0

_QUIET = """
import os, signal, sys
from escrowmq.pipeline.spark.parent import end_with_parent
end_with_parent(int(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
"""
#: Program of a child, by its kind.
KINDS = {
    "good": _QUIET + "print('ready', flush=True)\nwhile True: signal.pause()",
    # Ignores SIGTERM.
    "stubborn": _QUIET
    + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + "print('ready', flush=True)\nwhile True: signal.pause()",
    # Starts a process and does not stop it.
    "parent": _QUIET
    + "import subprocess\n"
    + "left = subprocess.Popen(['sleep', '1000'])\n"
    + "print('left', left.pid, flush=True)\nprint('ready', flush=True)\nwhile True: signal.pause()",
    "refusing": "import sys\nsys.exit(2)",
    "failing": "import sys\nsys.exit(1)",
}


def run(kinds: list[str]) -> int:
    def child(kind: str) -> Child:
        command = [sys.executable, "-c", KINDS[kind], str(os.getpid())]

        def on_line(line: str) -> bool:
            say(kind, line)
            return line == "ready"

        is_vital = kind == "refusing"
        return Child(name=kind, command=lambda: command, on_line=on_line, is_vital=is_vital)

    supervising.STOP_S_MAX = float(os.environ.get("STOP_S_MAX", "20"))
    return Supervisor([child(kind) for kind in kinds], say).run()


def say(name: str, text: str) -> None:
    print(name, text, flush=True)  # noqa: T201 -- tests read these lines


class Family:
    """The parent process and its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        #: The parent, and every process id in its output.
        self.pids: set[int] = {process.pid}

    def line(self, *wanted: str) -> str:
        """Return the next line that contains all of these texts."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            self.pids |= {int(number) for number in re.findall(r"\bpid=(\d+)", line)}
            self.pids |= {int(words[2])} if words[1:2] == ["left"] else set()
            if all(one in line for one in wanted):
                return line
        raise AssertionError(f"it ended, and never said {wanted}")

    def lines(self, *wanted: str) -> None:
        """Read until each of these texts was in a line, in any order."""
        left = set(wanted)
        while left:
            line = self.line("")
            left = {one for one in left if one not in line}

    def pid(self, name: str) -> int:
        """Return the process id of the next child with this name."""
        return int(self.line(f"{name} ", " started ").rpartition("pid=")[2])

    def ends(self) -> int:
        """Wait for the parent to end, and return its exit code."""
        return self.process.wait(DEADLINE_S)


@contextmanager
def family(
    *kinds: str, module: str = "tests.unit.supervise.family", **environ: str
) -> Iterator[Family]:
    """Run a parent with these children, and check that no process is left at the end."""
    command = [sys.executable, "-m", module, *kinds]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    ) as process:
        found = Family(process)
        try:
            yield found
            assert [pid for pid in found.pids if not is_gone(pid)] == []
        finally:
            process.kill()
            for pid in found.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)


def is_gone(pid: int, deadline_s: float = DEADLINE_S) -> bool:
    """Wait for a process that is not our child, and return whether it ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], deadline_s)[0])
    finally:
        os.close(descriptor)


def children_of(pid: int) -> list[int]:
    """Return the process ids of all descendants."""
    found = []
    # A thread or a process may end during the search.
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    found += [int(child), *children_of(int(child))]
    return found


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
