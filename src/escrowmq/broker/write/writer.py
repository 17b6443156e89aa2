"""The only writer of the store: commands in, group commits out.

While one flush runs, the next batch gathers. A batch is decided and applied in memory, written and
flushed together, and only then answered. A single command is flushed at once, on the event loop's
thread, and so is every batch on a fast disk: a handover to the flush thread would take longer than
the flush, and the two threads would compete.

When the inbox fills, the writer slows new messages before decisions, so that held transactions can
still be decided. A batch is fair to all senders (``inbox.py``). After a failed write, flush or
checkpoint the writer serves nothing more: commands in the failed batch get an unknown outcome, all
others get the store's failure, and ``failed`` tells the process to stop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TypeVar

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write.flush_times import FlushTimes
from escrowmq.broker.write.following import Following
from escrowmq.broker.write.inbox import (
    Depths,
    Inbox,
    QueuedCommand,
    Tell,
    is_background,
    size_of,
)
from escrowmq.broker.write.pace import BackgroundPace
from escrowmq.broker.write.questions import Questions
from escrowmq.broker.write.slow_work import Beside
from escrowmq.broker.write.slowed import SlowedSubmitters
from escrowmq.broker.write.store_time import StoreClock
from escrowmq.model.errors import OutcomeUnknown, Unavailable
from escrowmq.model.futures import resolve
from escrowmq.store.disk.space import RoomLevel
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Carry, Command, Decision, MoveTime

T = TypeVar("T")
OnDurable = Callable[[list[QueuedCommand], list[Decision]], None]


UNFLUSHED_BATCH_MAX = 64
"""Most commands in a batch that does not wait for the disk: few, so that senders continue early."""


JOIN_S = 0.002
"""While clients send messages, a background command waits this long for a batch to join, because a
batch of its own would cost the clients a flush."""


class Writer:
    """The only path that changes the store. Use it from one event loop only."""

    def __init__(self, store: Store, clock: StoreClock, config: WriterConfig | None = None) -> None:
        self._store = store
        self._clock = clock
        self._is_fsync = store.config.durability == "fsync"
        self._config = config or WriterConfig()
        if not self._is_fsync:
            batch_max = min(self._config.batch_max, UNFLUSHED_BATCH_MAX)
            self._config = replace(self._config, batch_max=batch_max)
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(self._config, are_decisions_alone=not self._is_fsync)
        self._slowed = SlowedSubmitters(self._loop, self._inbox, self._config)
        self._alone: deque[Callable[[], None]] = deque()
        self._questions = Questions(self._loop, self._schedule)
        self.pace = BackgroundPace()
        self._is_scheduled = False
        #: Whether background commands wait for a batch to join.
        self._is_joining = False
        self._is_flushing = False
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._beside = Beside(store, self._after, self._fail)
        follower = store.follower
        #: None if the state table is the state store.
        self.following = None if follower is None else Following(store, follower, self._schedule)
        #: Done, with the error, once the store has failed.
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._closing = False
        self._drained: asyncio.Future[None] | None = None
        #: Called with each durable batch, before its commands are answered.
        self.on_durable: OnDurable = _ignore
        self.flush_times = FlushTimes()
        #: Called with the numbers of the queues that grew, after a batch or a part of its dispatch.
        self.on_visible: Callable[[set[int]], None] = lambda _queues: None

    # For callers.

    async def submit(self, command: Command) -> Decision:
        """Return the decision on a command once it is durable. Waits while the inbox is full."""
        self._refuse_if_closed()
        if self.following is not None:
            self.following.refuse_if_away(command)
        size = size_of(command)
        if not self._store.space.claim(size):
            self._look_for_space(command, size)
        while not self._inbox.has_room(size):
            await self._slowed.wait(size)
            self._refuse_if_closed()
        answer: asyncio.Future[Decision] = self._loop.create_future()
        waiting = self._inbox.put(command, size, partial(resolve, answer))
        self._schedule()
        try:
            return await answer
        except asyncio.CancelledError:
            waiting.is_wanted = False
            raise
        finally:
            # Avoids a cycle: the future holds an error, whose traceback holds this frame.
            del answer, waiting

    def put(self, command: Command, tell: Tell, source: Hashable = None) -> None:
        """Have ``tell`` called with the decision once it is durable, or with the error.

        For callers that cannot wait: raises Unavailable if there is no room for this ``source``.
        """
        self._refuse_if_closed()
        if self.following is not None:
            self.following.refuse_if_away(command)
        size = size_of(command)
        if not self._inbox.has_room(size, source):
            raise Unavailable("inbox_full", "the writer's queue is full")
        if not self._store.space.claim(size):
            self._look_for_space(command, size)
        if size is not None:
            self.pace.note_sent()
        self._inbox.put(command, size, tell, source)
        if is_background(command) and self.pace.is_in_use:
            self._schedule_later()
        else:
            self._schedule()

    def between(self, work: Callable[[], None]) -> None:
        """Run a question soon, between two batches, when memory holds exactly what is durable."""
        self._refuse_if_closed()
        if len(self._questions) >= self._config.inbox_max:
            raise Unavailable("inbox_full", "the queue of questions is full")
        self._questions.put(work)
        self._schedule()

    def _look_for_space(self, command: Command, size: int | None) -> None:
        self.look_at_space()
        space = self._store.space
        # Accept a move of store time: nothing is deleted before it, so no room would get free.
        if type(command) is not MoveTime or space.level is RoomLevel.NOTHING:
            space.refuse_if_full(size)

    def look_at_space(self) -> None:
        """Measure the free room on the disk; to be called regularly."""
        log = self._store.log
        self._store.space.look(self._inbox.message_bytes + log.end - log.written)

    @property
    def waiting(self) -> Depths:
        """Numbers of waiting commands and questions."""
        return self._inbox.depths(len(self._questions))

    async def alone(self, work: Callable[[Store], T]) -> T:
        """Run ``work`` between two batches, when memory holds exactly what is durable.

        Every queue has its entries then, and no checkpoint is in progress.
        """
        self._refuse_if_closed()
        done: asyncio.Future[T] = self._loop.create_future()
        self._alone.append(partial(self._run_alone, work, done))
        self._schedule()
        try:
            return await done
        finally:
            # Avoids a cycle, as in ``submit``.
            del done

    def _run_alone(self, work: Callable[[Store], T], done: asyncio.Future[T]) -> None:
        try:
            result = work(self._store)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            resolve(done, error)
            # Avoids a cycle, as in ``submit``.
            del done
            if self._store.failure is not None:
                self._fail(error)
        else:
            resolve(done, result)

    async def carry(self, commands: Sequence[Carry]) -> list[Decision]:
        """Return the decisions on what retention carries forward, once durable.

        Retention has checked for room itself.
        """
        self._refuse_if_closed()
        answers: list[asyncio.Future[Decision]] = []
        for command in commands:
            answers.append(self._loop.create_future())
            self._inbox.put(command, None, partial(resolve, answers[-1]))
        self._schedule()
        return await asyncio.gather(*answers)

    async def aside(self, work: Callable[[], object]) -> None:
        """Run long ``work`` in another thread, while no checkpoint is in progress."""
        self._refuse_if_closed()
        done = self._beside.work(work)
        self._schedule()
        await done

    async def checkpoint(self) -> None:
        """Take a checkpoint of the present state or a slightly later one."""
        self._refuse_if_closed()
        done = self._beside.checkpoint()
        self._schedule()
        await done

    async def close(self) -> None:
        """Answer what was submitted, then close the store, with a checkpoint if possible."""
        if self._store.failure is None:
            self._refuse_if_closed()
        self._closing = True
        if not self._is_quiet:
            self._drained = self._loop.create_future()
            self._schedule()
            await self._drained
        self._flusher.shutdown()
        self._beside.close()
        if self.following is not None:
            await self.following.close()
        # Tells the next start when the broker stopped, even if the last write is much older.
        self._store.last_at_ms = max(self._store.last_at_ms, self._clock.now_ms())
        self._store.close()

    @property
    def _is_quiet(self) -> bool:
        if self.failed.done():
            return True
        is_busy = self._is_flushing or self._beside.is_busy
        waits = self._inbox or self._alone or self._questions or self._beside.has_work
        return not (waits or is_busy) and self._store.dispatcher.is_idle

    def _tell_if_quiet(self) -> None:
        if self._drained is not None and self._is_quiet and not self._drained.done():
            self._drained.set_result(None)

    # The inbox.

    def _refuse_if_closed(self) -> None:
        if self._closing:
            raise Unavailable("writer_closed", "the broker is stopping")
        if self._store.failure is not None:
            raise self._store.finished()

    # Batches.

    def _schedule(self) -> None:
        if not (self._is_scheduled or self._is_flushing):
            self._is_scheduled = True
            # Soon, not now: every sender that is ready in this turn of the loop joins the batch.
            self._loop.call_soon(self._turn)

    def _schedule_later(self) -> None:
        if not (self._is_scheduled or self._is_flushing or self._is_joining):
            self._is_joining = True
            self._loop.call_later(JOIN_S, self._end_joining)

    def _end_joining(self) -> None:
        self._is_joining = False
        if self._inbox:
            self._schedule()

    def _turn(self) -> None:
        self._is_scheduled = False
        try:
            self._do_turn()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the store must not go on
            self._fail(error)

    def _do_turn(self) -> None:
        if self._store.failure is not None:
            return
        if self._alone and not self._beside.is_busy and self._store.dispatcher.is_idle:
            self._alone.popleft()()
        if self._questions.are_ready:
            # One question per turn, so that batches continue in between.
            self._questions.answer_one(is_beside_senders=self.pace.is_in_use)
        batch = self._inbox.take()
        self._slowed.let_in()
        if not batch:
            self._after()
            return
        store = self._store
        now_ms = self._clock.now_ms()
        try:
            decisions = [store.execute(waiting.command, now_ms) for waiting in batch]
            if store.log.end == store.log.written:
                # Nothing to write. The answers still follow earlier batches, which they may show.
                self._answer(batch, decisions)
                return
            store.write()
            if self._is_fsync:
                # Retention is not urgent: a slow flush for it must not block the event loop.
                is_alone = len(batch) == 1 and not self._inbox
                is_hurried = is_alone and type(batch[0].command) is not Carry
                if not (is_hurried or self.flush_times.are_quick):
                    self._flush_aside(batch, decisions)
                    return
                took_s = self._flush()
                self.flush_times.add(took_s)
                self.pace.note_flush(took_s)
        except BaseException as error:
            _tell(batch, error)
            raise
        self._answer(batch, decisions)

    def _flush_aside(self, batch: list[QueuedCommand], decisions: list[Decision]) -> None:
        self._is_flushing = True
        flushing = self._flusher.submit(self._flush)
        flushing.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._flushed, done, batch, decisions)
        )

    def _flush(self) -> float:
        """Flush in the calling thread, and return how long it took in seconds."""
        began = perf_counter()
        self._store.flush()
        return perf_counter() - began

    def _flushed(
        self, done: Future[float], batch: list[QueuedCommand], decisions: list[Decision]
    ) -> None:
        self._is_flushing = False
        error = done.exception()
        if error is not None:
            _tell(batch, error)
            self._fail(error)
            return
        self.flush_times.add(done.result())
        self._answer(batch, decisions)

    def _answer(self, batch: list[QueuedCommand], decisions: list[Decision]) -> None:
        grown = self._store.publish()
        self.on_durable(batch, decisions)
        for waiting, decision in zip(batch, decisions, strict=True):
            waiting.tell(decision)
        if grown:
            self.on_visible(grown)
        self._after()

    def _after(self) -> None:
        """Do the work between two batches, and schedule the next one."""
        store = self._store
        if not store.dispatcher.is_idle:
            grown = store.publish()
            self.on_visible(grown)
        elif not (self._beside.is_busy or self._alone):
            # Work that must run alone goes first; under load a checkpoint would always be running.
            self._beside.begin()
        if self.following is not None:
            self.following.follow()
        may_be_alone = self._alone and not self._beside.is_busy
        if self._inbox or may_be_alone or self._questions.are_ready or not store.dispatcher.is_idle:
            self._schedule()
        self._tell_if_quiet()

    # Failing.

    def _fail(self, error: BaseException) -> None:
        if self._store.failure is None:
            self._store.failure = error
        for waiting in self._inbox.clear():
            waiting.tell(self._store.finished())
        self._beside.give_up(self._store.finished())
        # Each question sees that the store has failed.
        self._questions.answer_all()
        self._slowed.let_all_in()
        if not self.failed.done():
            self.failed.set_result(error)
        self._tell_if_quiet()


def _ignore(batch: list[QueuedCommand], decisions: list[Decision]) -> None:
    """Do nothing: the default of ``on_durable``."""


def _tell(batch: list[QueuedCommand], error: BaseException) -> None:
    """Tell the senders that the outcome is unknown: only a restart shows what is on disk."""
    for waiting in batch:
        waiting.tell(
            OutcomeUnknown(
                "write_failed",
                "the store failed; ask again after it has restarted",
                cause=repr(error),
            )
        )
