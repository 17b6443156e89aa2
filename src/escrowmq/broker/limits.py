"""What all connections together may hold of the broker's memory, and who goes when it is used up.

Two things pile up at a connection: what came in and waits (the start of a frame whose rest does
not come, frames whose turn has not come), and answers that the peer does not read.  A limit for
each connection is no bound for twenty thousand, so each kind has a budget over all of them.

When a budget is used up, those are cut that have taken most of it for the longest time: bytes times
seconds.  Whoever sends and reads at its own pace holds its bytes for milliseconds, and stays.

The loop's time is shared as well: who asks for much at once is handled in turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.config import BrokerConfig

log = event_log(__name__)

#: How long a connection is handled when its bytes come, and nobody is behind.
TURN_S = 0.002
#: How long those who are behind are handled before the loop does something else.  Whoever is not
#: behind waits for it some three times: to be read, to be written, to be answered.
LATE_S = 0.0005
#: How long one of them is handled before it is the next one's turn.
QUANTUM_S = 0.00025
#: After a cut this much of a budget is in use at most, so that the next one is not at once.
KEPT = 7 / 8
#: Lines of one event in one second; the rest is only counted.
LINES_MAX = 10


class Holder(Protocol):
    """A connection, as a budget sees it."""

    @property
    def waiting_bytes(self) -> int:
        """What came in and waits."""
        ...

    @property
    def unread_bytes(self) -> int:
        """What was written and not read."""
        ...

    def cut(self, event: str, **facts: object) -> None:
        """End it now."""
        ...

    def end_if_stalled(self, now: float) -> None:
        """End it if it has held on for too long."""
        ...


@dataclass(slots=True)
class _Share:
    size: int
    since: float


class Budget:
    """Bytes that connections hold, of one kind."""

    def __init__(self, event: str, bytes_max: int, measure: Callable[[Holder], int]) -> None:
        self._event = event
        self._bytes_max = bytes_max
        self._measure = measure
        self._shares: dict[Holder, _Share] = {}
        self.bytes = 0

    def __iter__(self) -> Iterator[Holder]:
        return iter(list(self._shares))

    def hold(self, holder: Holder, size: int, now: float, *, anew: bool = False) -> None:
        """Somebody holds so much now; ``anew`` if nothing of it was there before."""
        share = self._shares.get(holder)
        if share is None:
            share = self._shares[holder] = _Share(0, now)
        self.bytes += size - share.size
        share.size = size
        if anew:
            share.since = now
        if self.bytes > self._bytes_max:
            self._cut_the_worst(now)

    def drop(self, holder: Holder) -> None:
        """Somebody holds nothing any more."""
        share = self._shares.pop(holder, None)
        if share is not None:
            self.bytes -= share.size

    def _cut_the_worst(self, now: float) -> None:
        for holder, share in self._shares.items():
            # Peers read on without our hearing of it.
            share.size = self._measure(holder)
        self.bytes = sum(share.size for share in self._shares.values())
        # Not 0 seconds: of those who came this moment the largest goes first.
        by_offence = sorted(
            self._shares.items(),
            key=lambda one: one[1].size * (now - one[1].since + 0.001),
            reverse=True,
        )
        for holder, share in by_offence:
            if self.bytes <= self._bytes_max * KEPT:
                return
            self.drop(holder)
            held_ms = round((now - share.since) * 1_000)
            holder.cut(self._event, bytes=share.size, held_ms=held_ms)


class Late(Protocol):
    """A connection that has more to be handled than fits into one turn."""

    def take_turn(self, until: float) -> None:
        """Handle something, until then at most, and ask for another turn if that is not all."""
        ...


class Turns:
    """Connections that are behind take turns, and all of them together leave time for others."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: deque[Late] = deque()

    def ask(self, late: Late) -> None:
        """Somebody wants to go on."""
        if not self._late:
            self._loop.call_soon(self._take)
        self._late.append(late)

    @property
    def is_any_behind(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._late)

    def _take(self) -> None:
        now = self._loop.time()
        until = now + LATE_S
        while self._late and now < until:
            # Still in the queue meanwhile, so that it is not asked for once more.
            self._late[0].take_turn(now + QUANTUM_S)
            self._late.popleft()
            now = self._loop.time()
        if self._late:
            self._loop.call_soon(self._take)


class Limits:
    """One for all connections of a broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.waiting = Budget(
            "waiting_bytes_cut", config.waiting_bytes_max, attrgetter("waiting_bytes")
        )
        self.unread = Budget(
            "unread_bytes_cut", config.unread_bytes_max, attrgetter("unread_bytes")
        )
        self.turns = Turns()
        #: How often each limit was reached.
        self.counts: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        self._second = 0

    def note(self, event: str, now: float, **facts: object) -> None:
        """A limit was reached: count it, and say so unless that was said often enough."""
        self.counts[event] += 1
        if int(now) != self._second:
            self._second = int(now)
            self._lines.clear()
        self._lines[event] += 1
        if self._lines[event] <= LINES_MAX:
            log.warning(event, extra={**facts, "count": self.counts[event]})
