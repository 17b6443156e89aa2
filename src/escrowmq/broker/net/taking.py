"""Tracks which frames a peer's socket took, because only those back-checks count."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from escrowmq.broker.state.client_links import Taken

TAKEN_S_MAX = 5.0
"""A frame that has not left the transport after this many seconds counts as not taken."""
LOOK_S = 0.01
"""Seconds between two checks whether a full socket has taken more."""


class ByteSink(Protocol):
    """A transport, or anything else that takes bytes and sends them later."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes have not left yet."""
        ...

    def is_closing(self) -> bool:
        """Return whether the remaining bytes may be lost."""
        ...


class Taking:
    """Frames of one connection whose senders want to know whether the socket took them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Total bytes that were handed to the transport.
        self._handed_bytes = 0
        #: Callbacks of frames that are not handed over yet, and the size of these frames.
        self._untold: list[Taken] = []
        self._untold_bytes = 0
        #: Total bytes that must have left the transport, the deadline for that, and the callback.
        self._marks: deque[tuple[int, float, Taken]] = deque()
        self._is_looking = False
        #: The peer counts as stalled until this many bytes in total have left the transport.
        self._stalled_bytes = 0

    def has_room(self, transport: ByteSink, bytes_max: int) -> bool:
        """Return whether the peer reads fast enough to be sent one more frame."""
        waiting_bytes = transport.get_write_buffer_size()
        return (
            waiting_bytes + self._untold_bytes <= bytes_max
            and self._handed_bytes - waiting_bytes >= self._stalled_bytes
        )

    def expect(self, size: int, taken: Taken) -> None:
        """Register a callback for a frame that is about to be handed over."""
        self._untold.append(taken)
        self._untold_bytes += size

    def handed(self, size: int, transport: ByteSink) -> None:
        """Note that all frames so far were handed to the transport."""
        self._handed_bytes += size
        if not self._untold:
            return
        until = self._loop.time() + TAKEN_S_MAX
        self._marks.extend((self._handed_bytes, until, taken) for taken in self._untold)
        self._untold.clear()
        self._untold_bytes = 0
        if not self._is_looking:
            self._look(transport)

    def _look(self, transport: ByteSink) -> None:
        """Call back for the frames that the socket took, and for those past their deadline."""
        self._is_looking = False
        if transport.is_closing():
            # Lost bytes leave the transport, too, and would look as if they were taken.
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
        """Report all waiting frames as not taken by the socket."""
        self._marks.extend((0, 0.0, taken) for taken in self._untold)
        self._untold.clear()
        while self._marks:
            self._marks.popleft()[2](is_taken=False)
