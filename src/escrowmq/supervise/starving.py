"""Detects from Linux's scheduler statistics that a process and its children starve for CPU.

A process that runs at idle priority (``pipeline/priority.py``) gets almost no CPU time on a fully
loaded machine. It can do little about that: raising its own priority needs a privilege, and an
orderly exit needs CPU time. So its parent watches it. On other systems no process counts as
starving.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

#: Samples after the first one that a result needs.
LOOKS = 4
#: A starving process waits at least this many times as long as it runs,
WAITED_OVER_RAN = 20
#: and its threads together wait for at least this fraction of the elapsed time.
WAITED_PART = 0.5

NANOSECONDS = 1e-9

#: By thread: nanoseconds on a CPU, and nanoseconds of waiting for one.
_Accounts = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """CPU time and waiting time in seconds, summed over all threads."""

    ran_s: float
    waited_s: float
    #: Elapsed time.
    took_s: float

    @property
    def is_starving(self) -> bool:
        """Whether the process waited long for the CPU and got almost none of it."""
        is_kept_waiting = self.waited_s >= WAITED_PART * self.took_s
        return is_kept_waiting and self.waited_s >= WAITED_OVER_RAN * self.ran_s


class StarvationWatch:
    """Samples the CPU share of one process and its children."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._before: _Accounts = {}
        self._ran = self._waited = 0
        #: For each sample: its time, and the total run and waiting time so far in nanoseconds.
        self._looks: deque[tuple[float, int, int]] = deque(maxlen=1 + LOOKS)

    def starved(self, now_s: float) -> Share | None:
        """Take a sample; return the share over the last ``LOOKS`` intervals if it starves."""
        accounts = _accounts(self.pid)
        for thread, (ran, waited) in accounts.items():
            ran_before, waited_before = self._before.get(thread, (0, 0))
            # A new thread may reuse the id of an ended one, so a difference may be negative.
            self._ran += max(ran - ran_before, 0)
            self._waited += max(waited - waited_before, 0)
        self._before = accounts
        self._looks.append((now_s, self._ran, self._waited))
        at_s, ran, waited = self._looks[0]
        lately = Share(
            ran_s=(self._ran - ran) * NANOSECONDS,
            waited_s=(self._waited - waited) * NANOSECONDS,
            took_s=now_s - at_s,
        )
        return lately if len(self._looks) > LOOKS and lately.is_starving else None


def _accounts(pid: int) -> _Accounts:
    """Read the statistics of all threads of a process and its descendants; skip ended ones."""
    found: _Accounts = {}
    left = [pid]
    while left:
        try:
            tasks = list(Path(f"/proc/{left.pop()}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                left += map(int, (task / "children").read_text().split())
            except OSError:
                continue
            found[int(task.name)] = ran, waited
    return found
