"""Things for one broker that may share a request: what comes while one is under way goes next.

Nobody waits when nothing is under way, so a lone sender loses no time, and a crowd shares.  There
is one request at a time, so everything arrives in the order in which it was put.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable

ItemT = TypeVar("ItemT")
DoneT = TypeVar("DoneT")

WAITING_MAX = 20_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
SHARED_MAX = 1_024
SHARED_BYTES_MAX = 4 * 1024 * 1024


class Lane(Generic[ItemT, DoneT]):
    """Belongs to one event loop.

    ``carry`` brings several items over and returns what became of each.  Items share a request
    only with those of the same ``kind``.
    """

    def __init__(
        self,
        carry: Callable[[list[ItemT]], Awaitable[Sequence[DoneT | EscrowError]]],
        size: Callable[[ItemT], int],
        kind: Callable[[ItemT], object] = lambda _item: None,
        *,
        shared_max: int = SHARED_MAX,
    ) -> None:
        self._carry = carry
        self._size = size
        self._kind = kind
        self._shared_max = shared_max
        self._waiting: deque[tuple[ItemT, asyncio.Future[DoneT]]] = deque()
        self._bytes = 0
        self._running: asyncio.Task[None] | None = None

    def put(self, item: ItemT) -> asyncio.Future[DoneT]:
        """What becomes of it; refused at once if too much waits already."""
        size = self._size(item)
        if len(self._waiting) >= WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
            raise Unavailable(
                "too_much_to_send", "send slower, or wait for earlier messages", retry_after_ms=100
            )
        done: asyncio.Future[DoneT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        self._bytes += size
        if self._running is None:
            # It starts in the loop's next turn: whoever comes in this one shares its request.
            self._running = asyncio.ensure_future(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    await self._bring([item for item, _ in batch], [done for _, done in batch])
        finally:
            self._running = None
            while self._waiting:
                _, done = self._waiting.popleft()
                done.cancel()

    def _take(self) -> list[tuple[ItemT, asyncio.Future[DoneT]]]:
        batch: list[tuple[ItemT, asyncio.Future[DoneT]]] = []
        total = 0
        kind: object = None
        while self._waiting and len(batch) < self._shared_max:
            item, done = self._waiting[0]
            size = self._size(item)
            if batch and (total + size > SHARED_BYTES_MAX or self._kind(item) != kind):
                break
            self._waiting.popleft()
            self._bytes -= size
            if done.cancelled():
                # Whoever sent it is gone, and it has not left yet.
                continue
            kind = self._kind(item)
            total += size
            batch.append((item, done))
        return batch

    async def _bring(self, items: list[ItemT], dones: list[asyncio.Future[DoneT]]) -> None:
        try:
            ends = await self._carry(items)
        except RequestRefused as refused:
            if len(items) == 1:
                _end(dones[0], refused)
                return
            # They were refused together: each alone, so that one does not spoil the others.
            for item, done in zip(items, dones, strict=True):
                await self._bring([item], [done])
            return
        except EscrowError as error:
            for done in dones:
                _end(done, error)
            return
        except BaseException:
            for done in dones:
                done.cancel()
            raise
        for done, end in zip(dones, ends, strict=True):
            _end(done, end)

    async def close(self) -> None:
        """Wait for what was put."""
        while self._running is not None:
            await asyncio.wait((self._running,))


def _end(done: asyncio.Future[DoneT], end: DoneT | EscrowError) -> None:
    if done.done():
        return
    if isinstance(end, EscrowError):
        done.set_exception(end)
    else:
        done.set_result(end)
