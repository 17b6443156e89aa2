"""Submitters that wait for room in the writer's inbox; decisions go before messages."""

from __future__ import annotations

import asyncio
from collections import deque

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write.inbox import Inbox


class SlowedSubmitters:
    """Two queues of waiting submitters. Use it from the event loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: Inbox, config: WriterConfig) -> None:
        self._loop = loop
        self._inbox = inbox
        self._config = config
        self._messages: deque[asyncio.Future[None]] = deque()
        self._decisions: deque[asyncio.Future[None]] = deque()

    async def wait(self, size: int | None) -> None:
        """Wait until there may be room; ``size`` is None for a decision."""
        turn: asyncio.Future[None] = self._loop.create_future()
        (self._decisions if size is None else self._messages).append(turn)
        await turn

    def let_in(self) -> None:
        """Wake as many submitters as there is room for."""
        room = self._config.inbox_max - len(self._inbox)
        while room > 0 and self._decisions:
            room -= _wake(self._decisions.popleft())
        room = min(room, self._config.messages_max - len(self._inbox))
        while room > 0 and self._messages:
            room -= _wake(self._messages.popleft())

    def let_all_in(self) -> None:
        """Wake all submitters."""
        for waiting in (self._messages, self._decisions):
            while waiting:
                _wake(waiting.popleft())


def _wake(turn: asyncio.Future[None]) -> bool:
    if turn.done():
        return False
    turn.set_result(None)
    return True
