"""Queue of items for one broker that share requests: new items wait for the request in flight.

An item does not wait if no request is in flight, so a single sender has no extra delay, and many
senders share requests. Only one request is in flight at a time, so items arrive in the order in
which they were put.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable
from escrowmq.model.futures import resolve

ItemT = TypeVar("ItemT")
DoneT = TypeVar("DoneT")

WAITING_MAX = 20_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
SHARED_MAX = 1_024
SHARED_BYTES_MAX = 4 * 1024 * 1024


class SharedRequests(Generic[ItemT, DoneT]):
    """A queue with one request in flight. Use it from one event loop only.

    ``send`` sends several items and returns the outcome of each. Items share a request only with
    items of the same ``kind``.
    """

    def __init__(
        self,
        send: Callable[[list[ItemT]], Awaitable[Sequence[DoneT | EscrowError]]],
        size: Callable[[ItemT], int],
        kind: Callable[[ItemT], object] = lambda _item: None,
        *,
        shared_max: int = SHARED_MAX,
    ) -> None:
        self._send = send
        self._size = size
        self._kind = kind
        self._shared_max = shared_max
        self._waiting: deque[tuple[ItemT, asyncio.Future[DoneT]]] = deque()
        self._bytes = 0
        self._running: asyncio.Task[None] | None = None

    def put(self, item: ItemT) -> asyncio.Future[DoneT]:
        """Add an item and return the future of its outcome; refuse if the queue is full."""
        size = self._size(item)
        if len(self._waiting) >= WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
            raise Unavailable(
                "too_much_to_send", "send slower, or wait for earlier messages", retry_after_ms=100
            )
        done: asyncio.Future[DoneT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        self._bytes += size
        if self._running is None:
            # The task starts in the loop's next turn, so items put in this turn share its request.
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
                # The sender was cancelled before its item was sent.
                continue
            kind = self._kind(item)
            total += size
            batch.append((item, done))
        return batch

    async def _bring(self, items: list[ItemT], dones: list[asyncio.Future[DoneT]]) -> None:
        try:
            ends = await self._send(items)
        except RequestRefused as refused:
            if len(items) == 1:
                resolve(dones[0], refused)
                return
            # The broker refused the batch: send each item alone, so that only the bad one fails.
            for item, done in zip(items, dones, strict=True):
                await self._bring([item], [done])
            return
        except EscrowError as error:
            for done in dones:
                resolve(done, error)
            return
        except BaseException:
            for done in dones:
                done.cancel()
            raise
        for done, end in zip(dones, ends, strict=True):
            resolve(done, end)

    async def close(self) -> None:
        """Wait until all items are done."""
        while self._running is not None:
            await asyncio.wait((self._running,))
