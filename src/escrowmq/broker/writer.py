"""The one writer: commands in, group commits out.

While one flush runs, the next batch gathers.  A batch is decided and applied in memory, written
and flushed together, and only then answered.  A command that is alone is flushed at once, on the
loop's own thread, and so is everything on a quick disk: handing it over would take longer than the
flush, and two threads get into each other's way.

New messages wait before decisions do: when the inbox fills, half messages are slowed first, so
that what is already held can be settled.  A batch is fair to those who sent it
(``inbox.py``).  After a failed write, flush or checkpoint nothing is
served any more: whoever was waiting is told that the outcome is unknown, everybody else that the
store has failed, and ``failed`` tells the process to stop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from escrowmq.broker.beside import Beside
from escrowmq.broker.config import WriterConfig
from escrowmq.broker.flush_times import FlushTimes
from escrowmq.broker.inbox import Depths, Inbox, Tell, Waiting, size_of
from escrowmq.broker.questions import Questions
from escrowmq.model.errors import OutcomeUnknown, Unavailable
from escrowmq.store.space import Level
from escrowmq.transaction.commands import Carry, Command, Decision, MoveTime

if TYPE_CHECKING:
    from escrowmq.broker.store_time import StoreClock
    from escrowmq.store.store import Store

T = TypeVar("T")
OnDurable = Callable[[list[Waiting], list[Decision]], None]


UNFLUSHED_BATCH_MAX = 64
"""Commands in one batch where none waits for the disk: few, so that the first are answered, and
their senders go on, while the others are written."""

IN_USE_S = 0.1
"""So long after a message somebody is taken to be sending."""


class Writer:
    """Everything that changes the store goes through here.  Belongs to one event loop."""

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
        #: Submitters that wait for room, by lane.
        self._slowed_messages: deque[asyncio.Future[None]] = deque()
        self._slowed_decisions: deque[asyncio.Future[None]] = deque()
        self._alone: deque[Callable[[], None]] = deque()
        self._questions = Questions(self._loop, self._schedule)
        self._sent_at = -IN_USE_S
        self._is_scheduled = False
        self._is_flushing = False
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._beside = Beside(store, self._after, self._fail)
        #: Done, with the error, once the store has failed.
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._closing = False
        self._drained: asyncio.Future[None] | None = None
        #: Called with each batch that is durable, before anybody hears of it.
        self.on_durable: OnDurable = _ignore
        self.flush_times = FlushTimes()
        #: Called with the queues that grew, after each batch.
        self.on_visible: Callable[[set[int]], None] = lambda _queues: None

    # For callers.

    async def submit(self, command: Command) -> Decision:
        """The decision on a command, once it is durable.  Waits while the inbox is full."""
        self._refuse_if_closed()
        size = size_of(command)
        if not self._store.space.takes(size):
            self._look_for_space(command, size)
        slowed = self._slowed_decisions if size is None else self._slowed_messages
        while not self._inbox.has_room(size):
            await self._room(slowed)
        answer: asyncio.Future[Decision] = self._loop.create_future()
        waiting = self._inbox.put(command, size, partial(_resolve, answer))
        self._schedule()
        try:
            return await answer
        except asyncio.CancelledError:
            waiting.is_wanted = False
            raise
        finally:
            # An error's traceback has this frame, and the future has the error: not a cycle.
            del answer, waiting

    def put(self, command: Command, tell: Tell, source: Hashable = None) -> None:
        """Have ``tell`` called with the decision once it is durable, or with what went wrong.

        For whoever cannot wait: Unavailable if there is no room for this ``source``.
        """
        self._refuse_if_closed()
        size = size_of(command)
        if not self._inbox.has_room(size, source):
            raise Unavailable("inbox_full", "the broker has more to write than it can")
        if not self._store.space.takes(size):
            self._look_for_space(command, size)
        if size is not None:
            self._sent_at = self._loop.time()
        self._inbox.put(command, size, tell, source)
        self._schedule()

    @property
    def is_in_use(self) -> bool:
        """Whether clients are sending: whoever asks for much gets it in small pieces then."""
        return self._loop.time() - self._sent_at < IN_USE_S

    def between(self, work: Callable[[], None]) -> None:
        """Run a question soon, between two batches, when memory holds exactly what is durable."""
        self._refuse_if_closed()
        if len(self._questions) >= self._config.inbox_max:
            raise Unavailable("inbox_full", "the broker is asked more than it can answer")
        self._questions.put(work)
        self._schedule()

    def _look_for_space(self, command: Command, size: int | None) -> None:
        self.look_at_space()
        space = self._store.space
        # Before store time has moved nothing is deleted, and there would never be room.
        if type(command) is not MoveTime or space.level is Level.NOTHING:
            space.refuse_if_full(size)

    def look_at_space(self) -> None:
        """See what is free on the disk; to be done every now and then."""
        log = self._store.log
        self._store.space.look(self._inbox.message_bytes + log.end - log.written)

    @property
    def waiting(self) -> Depths:
        """What waits."""
        return self._inbox.depths(len(self._questions))

    async def alone(self, work: Callable[[Store], T]) -> T:
        """Run something between two batches, when memory holds exactly what is durable.

        Every queue has its entries then, and no checkpoint is under way.
        """
        self._refuse_if_closed()
        done: asyncio.Future[T] = self._loop.create_future()
        self._alone.append(partial(self._run_alone, work, done))
        self._schedule()
        try:
            return await done
        finally:
            # As in ``submit``.
            del done

    def _run_alone(self, work: Callable[[Store], T], done: asyncio.Future[T]) -> None:
        try:
            result = work(self._store)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            _resolve(done, error)
            # As in ``submit``.
            del done
            if self._store.failure is not None:
                self._fail(error)
        else:
            _resolve(done, result)

    async def carry(self, commands: Sequence[Carry]) -> list[Decision]:
        """Decisions on what retention carries, once durable; it has looked for room itself."""
        self._refuse_if_closed()
        answers: list[asyncio.Future[Decision]] = []
        for command in commands:
            answers.append(self._loop.create_future())
            self._inbox.put(command, None, partial(_resolve, answers[-1]))
        self._schedule()
        return await asyncio.gather(*answers)

    async def aside(self, work: Callable[[], object]) -> None:
        """Run something long in another thread, while no checkpoint is under way."""
        self._refuse_if_closed()
        done = self._beside.work(work)
        self._schedule()
        await done

    async def checkpoint(self) -> None:
        """Take a checkpoint of what there is now, or a little later."""
        self._refuse_if_closed()
        done = self._beside.checkpoint()
        self._schedule()
        await done

    async def close(self) -> None:
        """Answer what was submitted, checkpoint unless the store has failed, and close it."""
        if self._store.failure is None:
            self._refuse_if_closed()
        self._closing = True
        if not self._is_quiet:
            self._drained = self._loop.create_future()
            self._schedule()
            await self._drained
        self._flusher.shutdown()
        self._beside.close()
        # The next start knows from when on nobody was there, however long nothing was written.
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

    async def _room(self, lane: deque[asyncio.Future[None]]) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        lane.append(waiting)
        await waiting
        self._refuse_if_closed()

    def _let_in(self) -> None:
        """Wake as many as there is room for; decisions first."""
        room = self._config.inbox_max - len(self._inbox)
        while room > 0 and self._slowed_decisions:
            room -= _wake(self._slowed_decisions.popleft())
        room = min(room, self._config.messages_max - len(self._inbox))
        while room > 0 and self._slowed_messages:
            room -= _wake(self._slowed_messages.popleft())

    # Batches.

    def _schedule(self) -> None:
        if not (self._is_scheduled or self._is_flushing):
            self._is_scheduled = True
            # Soon, not now: everybody who is ready in this turn of the loop joins the batch.
            self._loop.call_soon(self._turn)

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
            # One each time, so that batches go on in between.
            self._questions.answer_one(is_beside_senders=self.is_in_use)
        batch = self._inbox.take()
        self._let_in()
        if not batch:
            self._after()
            return
        store = self._store
        now_ms = self._clock.now_ms()
        try:
            decisions = [store.execute(waiting.command, now_ms) for waiting in batch]
            if store.log.end == store.log.written:
                # Nothing but answers: still not before the batch that they may tell of.
                self._answer(batch, decisions)
                return
            store.write()
            if self._is_fsync:
                # What retention carries is in no hurry, and others are not to wait for it.
                is_alone = len(batch) == 1 and not self._inbox
                is_hurried = is_alone and type(batch[0].command) is not Carry
                if not (is_hurried or self.flush_times.are_quick):
                    self._flush_aside(batch, decisions)
                    return
                self.flush_times.add(self._flush())
        except BaseException as error:
            _tell(batch, error)
            raise
        self._answer(batch, decisions)

    def _flush_aside(self, batch: list[Waiting], decisions: list[Decision]) -> None:
        self._is_flushing = True
        flushing = self._flusher.submit(self._flush)
        flushing.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._flushed, done, batch, decisions)
        )

    def _flush(self) -> float:
        """Flush, in whichever thread; how long it took."""
        began = perf_counter()
        self._store.flush()
        return perf_counter() - began

    def _flushed(
        self, done: Future[float], batch: list[Waiting], decisions: list[Decision]
    ) -> None:
        self._is_flushing = False
        error = done.exception()
        if error is not None:
            _tell(batch, error)
            self._fail(error)
            return
        self.flush_times.add(done.result())
        self._answer(batch, decisions)

    def _answer(self, batch: list[Waiting], decisions: list[Decision]) -> None:
        grown = self._store.publish()
        self.on_durable(batch, decisions)
        for waiting, decision in zip(batch, decisions, strict=True):
            waiting.tell(decision)
        if grown:
            self.on_visible(grown)
        self._after()

    def _after(self) -> None:
        """What may happen between two batches."""
        store = self._store
        if not store.dispatcher.is_idle:
            grown = store.publish()
            self.on_visible(grown)
        elif not (self._beside.is_busy or self._alone):
            # Who waits to be alone goes first, or under load there would always be a checkpoint.
            self._beside.begin()
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
        # Whoever asks sees that the store has failed.
        self._questions.answer_all()
        for slowed in (self._slowed_messages, self._slowed_decisions):
            while slowed:
                _wake(slowed.popleft())
        if not self.failed.done():
            self.failed.set_result(error)
        self._tell_if_quiet()


def _resolve(answer: asyncio.Future[T], end: T | BaseException) -> None:
    if answer.done():
        return
    if isinstance(end, BaseException):
        answer.set_exception(end)
    else:
        answer.set_result(end)


def _ignore(batch: list[Waiting], decisions: list[Decision]) -> None:
    """What is done with a batch when nobody counts."""


def _wake(waiting: asyncio.Future[None]) -> bool:
    if waiting.done():
        return False
    waiting.set_result(None)
    return True


def _tell(batch: list[Waiting], error: BaseException) -> None:
    """These may be on disk or not: only a restart will tell."""
    for waiting in batch:
        waiting.tell(
            OutcomeUnknown(
                "write_failed",
                "the store failed; ask again after it has restarted",
                cause=repr(error),
            )
        )
