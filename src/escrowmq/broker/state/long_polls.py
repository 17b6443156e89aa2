"""Long polls: requests that wait for one of some queues to grow, or for their time to be up.

If very many polls wait for a queue that grows, they are tried a few at a time, so that the event
loop can do other work. Each kind of poll has a ``LongPolls``; ``AllLongPolls`` reaches all kinds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

WAIT_MS_MAX = 60_000
#: Most waiting polls, in all and of one owner.
WAITING_MAX = 100_000
OWNED_MAX = 16_384
#: Precision of the timeouts of waiting polls.
TICKS_PER_S = 20
#: How long waiting polls are tried before the event loop may do other work.
TRY_S = 0.002

Queue = tuple[str, int]
"""Topic and queue id."""


class LongPoll(Protocol):
    """A request that waits."""

    #: The tick at which it times out, and whether that has come.
    tick: int
    is_over: bool

    @property
    def queues(self) -> Iterable[Queue]:
        """The queues whose growth may end it."""
        ...

    @property
    def owner(self) -> Hashable:
        """The connection or gRPC call that it came from; it is dropped when that ends."""
        ...


PollT = TypeVar("PollT", bound=LongPoll)
KeyT = TypeVar("KeyT")


class LongPolls(Generic[PollT]):
    """Waiting polls of one kind. Use it from one event loop only."""

    def __init__(self, finish: Callable[[PollT], bool]) -> None:
        #: Tries to answer a poll; returns whether it was answered.
        self._finish = finish
        self.waiting = 0
        #: Each waiting poll is in each of these, in order of arrival.
        self._by_queue: dict[Queue, dict[PollT, None]] = {}
        self._by_tick: dict[int, dict[PollT, None]] = {}
        self._by_owner: dict[Hashable, dict[PollT, None]] = {}
        self._last_tick = _tick_at(0)
        #: Polls to try again, for example because a queue grew or their time is up.
        self._to_try: deque[PollT] = deque()
        self._is_trying = False

    def has_room(self, owner: Hashable) -> bool:
        """Whether one more poll of this owner may wait."""
        return self.waiting < WAITING_MAX and len(self._by_owner.get(owner, ())) < OWNED_MAX

    @property
    def is_behind(self) -> bool:
        """Whether some polls wait for their turn to be tried."""
        return bool(self._to_try)

    def add(self, poll: PollT, wait_ms: int) -> None:
        """Let a poll wait."""
        poll.tick = 1 + _tick_at(min(wait_ms, WAIT_MS_MAX) / 1_000)
        for queue in poll.queues:
            self._by_queue.setdefault(queue, {})[poll] = None
        self._by_tick.setdefault(poll.tick, {})[poll] = None
        self._by_owner.setdefault(poll.owner, {})[poll] = None
        self.waiting += 1

    def _remove(self, poll: PollT) -> None:
        for queue in poll.queues:
            _take_out(self._by_queue, queue, poll)
        _take_out(self._by_tick, poll.tick, poll)
        _take_out(self._by_owner, poll.owner, poll)
        self.waiting -= 1

    def drop(self, owner: Hashable) -> None:
        """Drop the polls of an owner whose connection or call has ended."""
        for poll in list(self._by_owner.get(owner, ())):
            self._remove(poll)

    def of_topic(self, topic: str) -> list[PollT]:
        """Return the polls that wait for queues of a topic."""
        found = (polls for queue, polls in self._by_queue.items() if queue[0] == topic)
        return list(dict.fromkeys(poll for polls in found for poll in polls))

    def __iter__(self) -> Iterator[PollT]:
        """Yield every waiting poll."""
        return (poll for polls in self._by_tick.values() for poll in polls)

    def grown(self, queues: Iterable[Queue]) -> None:
        """Try the polls that wait for these queues, which have new messages."""
        by_queue = self._by_queue
        self.try_again(poll for queue in queues for poll in by_queue.get(queue, ()))

    def give_up(self) -> None:
        """Try the polls whose time is up for the last time."""
        tick = _tick_at(0)
        ticks = range(self._last_tick, tick + 1)
        # Polls of the last tick are still here if there are very many.
        self._last_tick = tick
        self._end(poll for due in ticks for poll in self._by_tick.get(due, ()))

    def end(self) -> None:
        """Try all polls for the last time, because the broker stops."""
        self._end(self)

    def end_of(self, owner: Hashable) -> None:
        """Try the polls of this owner for the last time."""
        self._end(self._by_owner.get(owner, ()))

    def _end(self, polls: Iterable[PollT]) -> None:
        over = [poll for poll in polls if not poll.is_over]
        for poll in over:
            poll.is_over = True
        self.try_again(over)

    def try_again(self, polls: Iterable[PollT]) -> None:
        """Try these polls, a few at a time; a poll that is being tried goes on after the others."""
        was_idle = not (self._to_try or self._is_trying)
        self._to_try.extend(polls)
        if was_idle and self._to_try:
            self._try()

    def _try(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TRY_S
        self._is_trying = True
        try:
            while self._to_try:
                self._try_next()
                if loop.time() > until:
                    break
        finally:
            self._is_trying = False
            if self._to_try:
                # The event loop sends these answers before more are made.
                loop.call_soon(self._try)

    def _try_next(self) -> None:
        poll = self._to_try.popleft()
        # The poll may have been answered since, or its connection closed.
        if poll in self._by_owner.get(poll.owner, ()) and self._finish(poll):
            self._remove(poll)


class AllLongPolls:
    """The waiting polls of all kinds, for what happens to every kind alike."""

    def __init__(self, *kinds: LongPolls[Any]) -> None:
        self._kinds = [*kinds]

    def add(self, polls: LongPolls[Any]) -> None:
        """Add a kind, of a protocol that the broker serves from now on."""
        self._kinds.append(polls)

    @property
    def waiting(self) -> int:
        """Number of waiting polls."""
        return sum(polls.waiting for polls in self._kinds)

    def grown(self, queues: Collection[Queue]) -> None:
        """Try the polls that wait for these queues, which have new messages."""
        for polls in [polls for polls in self._kinds if polls.waiting]:
            polls.grown(queues)

    def drop(self, owner: Hashable) -> None:
        """Drop the polls of an owner whose connection or call has ended."""
        for polls in self._kinds:
            polls.drop(owner)

    def end(self) -> None:
        """Try all polls for the last time, because the broker stops."""
        for polls in self._kinds:
            polls.end()


def _tick_at(seconds: float) -> int:
    """Return the number of the tick this many seconds from now."""
    return int((asyncio.get_running_loop().time() + seconds) * TICKS_PER_S)


def _take_out(table: dict[KeyT, dict[PollT, None]], key: KeyT, poll: PollT) -> None:
    of_key = table[key]
    del of_key[poll]
    if not of_key:
        del table[key]
