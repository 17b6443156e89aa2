"""Slow work outside the writer: checkpoints, and retention's work on disk.

One thread does one piece at a time, so that a checkpoint and retention never overlap: a checkpoint
holds names of files that retention deletes. The event loop only freezes a checkpoint's data and
releases what was saved, slice by slice; it never waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from escrowmq.model.futures import resolve
from escrowmq.store.checkpoint.checkpoint_job import CheckpointJob
from escrowmq.store.store import Store


class Beside:
    """Runs slow work in one thread. Use it from one event loop only.

    It calls ``go_on`` when a piece of work has ended, and ``fail`` when a checkpoint has failed.
    """

    def __init__(
        self, store: Store, go_on: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._store = store
        self._go_on = go_on
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._works: deque[tuple[Callable[[], object], asyncio.Future[None]]] = deque()
        #: Callers that wait for the next checkpoint, and callers that wait for the one under way.
        self._wanted: list[asyncio.Future[None]] = []
        self._promised: list[asyncio.Future[None]] = []
        self.is_busy = False

    @property
    def has_work(self) -> bool:
        """Whether requested work waits to begin."""
        return bool(self._works or self._wanted)

    def work(self, work: Callable[[], object]) -> asyncio.Future[None]:
        """Queue work for the thread; ``begin`` starts it."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._works.append((work, done))
        return done

    def checkpoint(self) -> asyncio.Future[None]:
        """Queue a checkpoint of the state at the time when ``begin`` starts it."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._wanted.append(done)
        return done

    def begin(self) -> None:
        """Start the next queued work, or else a checkpoint if one is wanted or due.

        Call it between two batches, when every queue has its entries.
        """
        assert not self.is_busy, "one at a time"
        store = self._store
        if self._works:
            work, done = self._works.popleft()
            self.is_busy = True
            self._start(work, lambda ended: self._worked(ended, done))
        elif self._wanted or (store.checkpoint_due and store.space.look_for_files()):
            job = store.begin_checkpoint()
            self.is_busy = True
            self._promised, self._wanted = self._wanted, []
            self._start(job.write, lambda ended: self._written(ended, job))

    def give_up(self, error: BaseException) -> None:
        """Fail everything that waits, because the store has failed."""
        waiting = [*self._wanted, *self._promised, *(done for _, done in self._works)]
        self._works.clear()
        self._wanted, self._promised = [], []
        for done in waiting:
            resolve(done, error)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _start(self, work: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        self._thread.submit(work).add_done_callback(
            lambda ended: self._loop.call_soon_threadsafe(then, ended)
        )

    def _worked(self, ended: Future[object], done: asyncio.Future[None]) -> None:
        self.is_busy = False
        # Unlike a checkpoint's error, this error goes to the caller and does not stop the store.
        resolve(done, ended.exception())
        self._go_on()

    # A checkpoint.

    def _written(self, ended: Future[None], job: CheckpointJob) -> None:
        error = ended.exception()
        if error is not None:
            self._give_in(error)
        else:
            self._install(job, job.install())

    def _install(self, job: CheckpointJob, slices: Iterator[None]) -> None:
        try:
            for _ in slices:
                # Let other tasks run between two slices.
                self._loop.call_soon(self._install, job, slices)
                return
            job.seal()
        except BaseException as error:  # noqa: BLE001 - any error must stop the store
            self._give_in(error)
            return
        self._start(job.save, lambda ended: self._saved(ended, job))

    def _saved(self, ended: Future[None], job: CheckpointJob) -> None:
        error = ended.exception()
        if error is not None:
            self._give_in(error)
            return
        job.finish()
        self.is_busy = False
        promised, self._promised = self._promised, []
        for done in promised:
            resolve(done, None)
        self._go_on()

    def _give_in(self, error: BaseException) -> None:
        self.is_busy = False
        self._fail(error)
