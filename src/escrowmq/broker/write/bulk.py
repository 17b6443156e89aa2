"""Many commands of one request, fed to the writer in slices and answered together.

The commands of a slice share a flush, and other requests get a turn between two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import Unavailable
from escrowmq.transaction.commands import Command, Decision

SLICE_MAX = 256
AGAIN_S = 0.01
TRIES_MAX = 500
"""Retries while the inbox is full and no command is under way; then the rest is refused."""

Ends = list[Decision | BaseException]


class Bulk:
    """Runs commands that end independently, each with its decision or its error."""

    def __init__(
        self,
        writer: Writer,
        commands: Sequence[Command],
        tell: Callable[[Ends], None],
        *,
        slice_max: int | None = None,
    ) -> None:
        self._writer = writer
        self._commands = commands
        self._tell = tell
        self._slice_max = slice_max or SLICE_MAX
        self._ends: dict[int, Decision | BaseException] = {}
        self._next = 0
        self._tries = 0

    def start(self) -> None:
        """Start feeding the writer; a command that cannot be written ends with ``Unavailable``."""
        if not self._commands:
            self._tell([])
            return
        self._feed()

    def _feed(self) -> None:
        stop = min(self._next + self._slice_max, len(self._commands))
        try:
            while self._next < stop:
                self._writer.put(self._commands[self._next], partial(self._note, self._next))
                self._next += 1
                self._tries = 0
        except Unavailable as full:
            if self._is_quiet:
                self._try_again(full)

    @property
    def _is_quiet(self) -> bool:
        """Whether every command given to the writer has ended."""
        return len(self._ends) == self._next

    def _try_again(self, full: Unavailable) -> None:
        self._tries += 1
        if full.code == "inbox_full" and self._tries <= TRIES_MAX:
            asyncio.get_running_loop().call_later(AGAIN_S, self._feed)
            return
        for at in range(self._next, len(self._commands)):
            self._ends[at] = full
        self._finish()

    def _note(self, at: int, end: Decision | BaseException) -> None:
        self._ends[at] = end
        if len(self._ends) == len(self._commands):
            self._finish()
        elif self._is_quiet:
            self._feed()

    def _finish(self) -> None:
        self._tell([self._ends[at] for at in range(len(self._commands))])
