"""Writes ``meta.db`` in a thread: the event loop collects changes and the thread writes them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from escrowmq.broker.write.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from escrowmq.broker.net.requests import Request
    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.store import Store

T = TypeVar("T")


class MetaWriting:
    """Writes ``meta.db``, one write at a time. Use it from one event loop only."""

    def __init__(self, meta: Meta, store: Store) -> None:
        self._meta = meta
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="meta")
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(self) -> None:
        """Return once everything that has changed so far is durable."""
        async with self._turn:
            await self._write()

    async def _write(self) -> None:
        meta, loop = self._meta, asyncio.get_running_loop()
        while meta.is_behind:
            changes = meta.take(self._store.durable_end)
            try:
                await loop.run_in_executor(self._thread, meta.write, changes)
            except BaseException:
                meta.put_back(changes)
                raise
            meta.written(changes)
            self._store.meta_at = meta.standing

    async def copy(self) -> tuple[Path, int]:
        """Write a copy beside the file; return its path and the log offset that it includes."""
        standing = self._store.durable_end
        await self.write()
        # Another thread copies, so that writes continue. Closing the file aborts the copy.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._meta.copy_file), standing

    def soon(
        self, request: Request, work: Coroutine[None, None, T], answer: Callable[[T], None]
    ) -> None:
        """Run the work in a task, then answer the request with its result, or decline it."""

        async def do() -> None:
            try:
                tell = partial(answer, await work)
            except Exception as error:  # noqa: BLE001 - the client gets it
                tell = partial(request.decline, error)
            request.answered()
            guarded(request.decline, tell)

        request.owe()
        task = asyncio.get_running_loop().create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Write all changes, and close the file."""
        try:
            await self.write()
        finally:
            self._thread.shutdown()
            self._meta.close_file()
