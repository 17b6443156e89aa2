"""Limits on the memory of all connections together, and which connections to cut at a limit.

Two things pile up at a connection: received bytes that wait (an incomplete frame, or frames whose
turn has not come), and answers that the peer does not read. A limit per connection does not bound
twenty thousand connections, so each kind has a budget over all of them.

When a budget is used up, the broker cuts the connections that held the most bytes for the longest
time (bytes times seconds). A connection that keeps sending and reading holds its bytes for
milliseconds, so the broker keeps it.

The event loop's time is shared too: connections with much to handle take turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.broker.config import BrokerConfig

log = event_log(__name__)

#: Time to handle a connection when its bytes arrive and no other connection is behind.
TURN_S = 0.002
#: Time to handle connections with a backlog before the loop does other work. A message on another
#: connection can wait for this time about three times: before it is read, stored and answered.
LATE_S = 0.0005
#: Time to handle one of them before the next one's turn.
QUANTUM_S = 0.00025
#: Share of a budget that may stay in use after connections were cut to free it. The rest is room,
#: so that the next cut is not immediate.
KEPT = 7 / 8
#: Log lines of one event in one second; further events are only counted.
LINES_MAX = 10


class UnknownLimits:
    """Limits of a connection under access control, before its first request of a user."""

    #: A stock client may begin with its largest message.
    BYTES_MAX = 5 * 1024 * 1024
    S_MAX = 10.0


class BudgetHolder(Protocol):
    """A connection, as a budget sees it."""

    @property
    def waiting_bytes(self) -> int:
        """Received bytes that are not handled yet."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Written bytes that the peer has not read."""
        ...

    def cut(self, event: str, **facts: object) -> None:
        """Abort the connection at once."""
        ...

    def end_if_stalled(self, now: float) -> None:
        """Cut the connection if it has made no progress for too long."""
        ...


@dataclass(slots=True)
class _Share:
    size: int
    since: float


class Budget:
    """Budget for one kind of bytes that connections hold."""

    def __init__(self, event: str, bytes_max: int, measure: Callable[[BudgetHolder], int]) -> None:
        self._event = event
        self._bytes_max = bytes_max
        self._measure = measure
        self._shares: dict[BudgetHolder, _Share] = {}
        self.bytes = 0

    def __iter__(self) -> Iterator[BudgetHolder]:
        return iter(list(self._shares))

    def hold(self, holder: BudgetHolder, size: int, now: float, *, anew: bool = False) -> None:
        """Set what a connection holds; ``anew`` if it holds none of its earlier bytes."""
        share = self._shares.get(holder)
        if share is None:
            share = self._shares[holder] = _Share(0, now)
        self.bytes += size - share.size
        share.size = size
        if anew:
            share.since = now
        if self.bytes > self._bytes_max:
            self._cut_the_worst(now)

    def drop(self, holder: BudgetHolder) -> None:
        """Note that a connection holds nothing."""
        share = self._shares.pop(holder, None)
        if share is not None:
            self.bytes -= share.size

    def _cut_the_worst(self, now: float) -> None:
        for holder, share in self._shares.items():
            # Peers may have read more since the last measurement.
            share.size = self._measure(holder)
        self.bytes = sum(share.size for share in self._shares.values())
        # Add 1 ms, so that among connections that came just now the largest goes first.
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
    """A connection or a streamed answer with more work than fits into one turn."""

    def take_turn(self, until: float) -> None:
        """Work until about this time, and ask for another turn if work is left."""
        ...


class Turns:
    """Turns of connections that are behind; together they leave time for other work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: deque[Late] = deque()

    def ask(self, late: Late) -> None:
        """Queue a connection for a turn."""
        if not self._late:
            self._loop.call_soon(self._take)
        self._late.append(late)

    @property
    def is_any_behind(self) -> bool:
        """Whether any connection waits for a turn."""
        return bool(self._late)

    def _take(self) -> None:
        now = self._loop.time()
        until = now + LATE_S
        while self._late and now < until:
            # It stays in the queue during its turn, so that ``ask`` does not schedule ``_take``.
            self._late[0].take_turn(now + QUANTUM_S)
            self._late.popleft()
            now = self._loop.time()
        if self._late:
            self._loop.call_soon(self._take)


class ConnectionLimits:
    """Limits and counts shared by all connections of a broker."""

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
        """Count a reached limit, and log it unless this second's lines are used up."""
        self.counts[event] += 1
        if int(now) != self._second:
            self._second = int(now)
            self._lines.clear()
        self._lines[event] += 1
        if self._lines[event] <= LINES_MAX:
            log.warning(event, extra={**facts, "count": self.counts[event]})
