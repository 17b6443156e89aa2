"""Which frames a peer's socket took: whoever counts what was really asked wants to know."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

TAKEN_S_MAX = 5.0
"""A peer that has read nothing of a frame for so long is taken not to get it."""
LOOK_S = 0.01
"""How often it is looked whether a full socket has taken more."""


class Taken(Protocol):
    """Is told whether the socket took a frame."""

    def __call__(self, *, is_taken: bool) -> None:
        """Take note."""
        ...


class Taking:
    """Frames of one connection that somebody wants to know about."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Bytes that were handed to the transport, ever.
        self._handed_bytes = 0
        #: Who wants to know about frames that are not handed over, and how large those are.
        self._untold: list[Taken] = []
        self._untold_bytes = 0
        #: Who wants to know when so many bytes have left the transport, and until when.
        self._marks: deque[tuple[int, float, Taken]] = deque()
        self._is_looking = False
        #: Until so many bytes have left, nobody believes that the peer reads.
        self._stalled_bytes = 0

    def has_room(self, transport: asyncio.Transport, bytes_max: int) -> bool:
        """Whether the peer reads what it is sent: then one more frame is no burden."""
        waiting_bytes = transport.get_write_buffer_size()
        return (
            waiting_bytes + self._untold_bytes <= bytes_max
            and self._handed_bytes - waiting_bytes >= self._stalled_bytes
        )

    def expect(self, size: int, taken: Taken) -> None:
        """Somebody wants to know about a frame that is about to be handed over."""
        self._untold.append(taken)
        self._untold_bytes += size

    def handed(self, size: int, transport: asyncio.Transport) -> None:
        """All frames so far were handed to the transport."""
        self._handed_bytes += size
        if not self._untold:
            return
        until = self._loop.time() + TAKEN_S_MAX
        self._marks.extend((self._handed_bytes, until, taken) for taken in self._untold)
        self._untold.clear()
        self._untold_bytes = 0
        if not self._is_looking:
            self._look(transport)

    def _look(self, transport: asyncio.Transport) -> None:
        """Tell what the socket has taken."""
        self._is_looking = False
        if transport.is_closing():
            # What is lost leaves the transport as well.
            self.give_up()
            return
        gone_bytes = self._handed_bytes - transport.get_write_buffer_size()
        now = self._loop.time()
        while self._marks:
            at_bytes, until, taken = self._marks[0]
            if at_bytes > gone_bytes and until > now:
                self._is_looking = True
                self._loop.call_later(LOOK_S, self._look, transport)
                return
            self._marks.popleft()
            if at_bytes > gone_bytes:
                self._stalled_bytes = at_bytes
            taken(is_taken=at_bytes <= gone_bytes)

    def give_up(self) -> None:
        """Nothing more is taken."""
        self._marks.extend((0, 0.0, taken) for taken in self._untold)
        self._untold.clear()
        while self._marks:
            self._marks.popleft()[2](is_taken=False)
