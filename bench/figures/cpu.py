"""CPU time by kind of process, over a whole process tree."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Fields after the name in brackets: user, system, and both for children that have ended.
_TIMES = slice(11, 15)


class CpuTimes:
    """CPU time since this object was made, with separate totals for the named processes."""

    def __init__(self, **named: int) -> None:
        self._named = {pid: name for name, pid in named.items()}
        self._before = self._now()

    def spent(self) -> dict[str, object]:
        """Seconds since then by name; misses processes that ended and were not waited for."""
        found: dict[str, float] = defaultdict(float)
        for (name, pid), seconds in self._now().items():
            found[f"{name}_cpu_s"] += seconds - self._before.get((name, pid), 0.0)
        return {name: round(seconds, 2) for name, seconds in found.items() if seconds > 0}

    def _now(self) -> dict[tuple[str, int], float]:
        """CPU times of this program's, the broker's and the database's processes."""
        times = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                text = (place / "stat").read_text()
                name = self._name(int(place.name), text)
            except OSError:  # The process has ended meanwhile.
                continue
            if name:
                fields = text.rpartition(")")[2].split()
                times[name, int(place.name)] = sum(map(int, fields[_TIMES])) / TICKS_PER_S
        return times

    def _name(self, pid: int, stat: str) -> str:
        if pid in self._named:
            return self._named[pid]
        if pid == os.getpid():
            return "driver"
        program = stat[stat.index("(") + 1 : stat.rindex(")")]
        if program == "postgres":
            return "postgres"
        if not _is_below(pid, os.getpid()):
            return ""
        return "java" if program == "java" else "workers"


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        text = Path(f"/proc/{pid}/stat").read_text()
        pid = int(text.rpartition(")")[2].split()[1])
    return False
