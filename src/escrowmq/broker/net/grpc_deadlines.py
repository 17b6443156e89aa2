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
    """Calls with a deadline, by the tick in which it passes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, set[GrpcCall]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: GrpcCall, deadline: float) -> int:
        """Expire a call when its deadline passes; return the tick to ``drop`` it with."""
        tick = ceil(deadline * TICKS_PER_S)
        calls = self._calls.get(tick)
        if calls is None:
            calls = self._calls[tick] = set()
            if self._timer is None:
                self._timer = self._loop.call_later(1 / TICKS_PER_S, self._tick)
        calls.add(call)
        return tick

    def drop(self, call: GrpcCall, tick: int) -> None:
        """Stop watching a call."""
        calls = self._calls.get(tick)
        if calls is not None:
            calls.discard(call)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = int(self._loop.time() * TICKS_PER_S)
        for tick in [tick for tick in self._calls if tick <= now]:
            for call in self._calls.pop(tick):
                call.expire()
        self._timer = self._loop.call_later(1 / TICKS_PER_S, self._tick) if self._calls else None
