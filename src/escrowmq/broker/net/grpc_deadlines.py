"""Deadlines of gRPC calls, at most one tick late.

A timer for each call would cost more than the rest of a short call, so calls share one timer per
tick.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_call import GrpcCall

TICKS_PER_S = 20.0
"""Clients watch their deadlines themselves. The broker's check ends calls that no client awaits."""


class Deadlines:
    """Calls with a deadline, by the tick in which it passes.

    Most calls end before the next tick, so a new call is only noted.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Calls since the last tick.
        self._new: list[GrpcCall] = []
        self._calls: dict[int, set[GrpcCall]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: GrpcCall) -> None:
        """Expire a call when its deadline passes."""
        self._new.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(1 / TICKS_PER_S, self._tick)

    def drop(self, call: GrpcCall) -> None:
        """Stop watching a call that has ended."""
        calls = self._calls.get(call.tick)
        if calls is not None:
            calls.discard(call)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        news, self._new = self._new, []
        for call in news:
            if call.deadline is not None and not call.has_ended:
                call.tick = ceil(call.deadline * TICKS_PER_S)
                self._calls.setdefault(call.tick, set()).add(call)
        try:
            self._expire(int(self._loop.time() * TICKS_PER_S))
        finally:
            is_needed = self._calls or self._new
            self._timer = self._loop.call_later(1 / TICKS_PER_S, self._tick) if is_needed else None

    def _expire(self, now: int) -> None:
        for tick in [tick for tick in self._calls if tick <= now]:
            # A call whose end fails leaves the others here, for the next tick.
            calls = self._calls[tick]
            while calls:
                calls.pop().expire()
            del self._calls[tick]
