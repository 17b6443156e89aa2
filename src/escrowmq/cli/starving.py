"""Whether a process and those it started are kept from the processor, by Linux's own accounts.

Who takes what others leave (``pipeline/priority.py``) gets next to nothing where they leave
nothing.  It can do little about that: going forward again takes a right that it has not, and an
orderly end takes time that it does not get.  So its parent looks.  On other systems nobody is seen
to starve.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

#: As many looks after the first one make a verdict.
LOOKS = 4
#: Starving is to wait so many times as long as one runs,
WAITED_OVER_RAN = 20
#: and to wait for so much of the time.
WAITED_PART = 0.5

NANOSECONDS = 1e-9

#: Nanoseconds on a processor and in wait of one, by thread.
_Accounts = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of the processor, in seconds of all threads together."""

    ran_s: float
    waited_s: float
    #: How long that took.
    took_s: float

    @property
    def is_starving(self) -> bool:
        """Whether it wanted much and got next to nothing."""
        is_kept_waiting = self.waited_s >= WAITED_PART * self.took_s
        return is_kept_waiting and self.waited_s >= WAITED_OVER_RAN * self.ran_s


class Watch:
    """Looked at again and again."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._before: _Accounts = {}
        self._ran = self._waited = 0
        #: When, and what it was until then.
        self._looks: deque[tuple[float, int, int]] = deque(maxlen=1 + LOOKS)

    def starved(self, now_s: float) -> Share | None:
        """Look; its share since some looks ago, if it starves."""
        accounts = _accounts(self.pid)
        for thread, (ran, waited) in accounts.items():
            ran_before, waited_before = self._before.get(thread, (0, 0))
            # Another thread may have the same number.
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
    """Of a process's threads, and of those of its children; of what ended meanwhile nothing."""
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
