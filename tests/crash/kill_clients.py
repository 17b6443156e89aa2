"""Clients of a process that will be killed; each continues where it was with the next process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from socket import socket

from escrowmq.model.clock import SystemClock
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import decode
from escrowmq.store.reading.reader import Pulled, ReadStatus
from escrowmq.transaction import commands as c
from escrowmq.transaction.states import State
from tests.crash.kill_history import DECIDED, History, Tx
from tests.crash.kill_wire import Answered, Asked, Pull, packed, receive
from tests.crash.model import Queue, Wrong, seen

QUEUES: tuple[Queue, ...] = (("orders", 0), ("orders", 1), ("stock", 0))
_OPEN_MAX = 5
_REMEMBERED_MAX = 30
_READ_EVERY = 8


class Lost(ConnectionError):
    """The process died before it answered."""


class Link:
    """One client's connection to one life of the victim, with any number of requests in flight."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._is_lost = False
        self._answers = 0
        self._some_answers = asyncio.Event()

    async def open(self, end: socket) -> None:
        """Take over this socket."""
        self._reader, self._writer = await asyncio.open_connection(sock=end)

    async def listen(self) -> None:
        """Dispatch answers until the victim is dead."""
        try:
            while True:
                number, answer = await receive(self._reader)
                waiting = self._waiting.pop(number)
                if not waiting.done():
                    waiting.set_result(answer)  # type: ignore[arg-type]
                self._answers += 1
                if self._answers % _READ_EVERY == 0:
                    self._some_answers.set()
                self._on_answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._is_lost = True
            self._some_answers.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Lost())
        finally:
            self._writer.close()

    async def some_answers(self) -> None:
        """Wait until there may be something new, or until the victim is dead."""
        await self._some_answers.wait()
        self._some_answers.clear()

    async def ask(self, asked: Asked) -> Answered:
        """Send a request and wait for its answer."""
        if self._is_lost:
            raise Lost
        number = next(self._numbers)
        waiting: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._writer.write(packed(number, asked))
        return await waiting


class Session:
    """One sequence of a client's requests, with the transactions that it began."""

    def __init__(self, name: str, history: History, rng: Random) -> None:
        self.name = name
        self.history = history
        self.rng = rng
        self._clock = SystemClock()
        self._numbers = itertools.count()
        self._open: list[Tx] = []
        self._ended: deque[Tx] = deque(maxlen=_REMEMBERED_MAX)

    async def work(self, link: Link) -> None:
        """Continue until the process dies."""
        with contextlib.suppress(Lost):
            while True:
                await self._step(link)

    async def _do(self, link: Link, asked: Asked, tx: Tx | None = None) -> Answered:
        history = self.history
        op = history.sent(asked, tx, self._clock.now_ms())
        try:
            answer = await link.ask(asked)
        except Lost:
            history.lost_answer(op, tx)
            raise
        history.answered(op, tx, answer, self._clock.now_ms())
        return answer

    # Steps.

    async def _step(self, link: Link) -> None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.12:
            await self._do(link, c.Append(messages=self._messages()))
        elif chance < 0.18:
            await self._do(link, c.Append(messages=self._messages(is_later=True)))
        elif chance < 0.30 and self._ended:
            await self._ask_again(link, rng.choice(self._ended))
        elif chance < 0.55 and len(self._open) < _OPEN_MAX:
            await self._begin(link)
        elif self._open:
            await self._go_on(link, rng.choice(self._open))

    def _messages(
        self, *, is_later: bool = False, is_delayed: bool = False
    ) -> tuple[SentMessage, ...]:
        rng = self.rng
        made = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 9))):
            key = f"{self.name}.{next(self._numbers)}"
            topic, queue_id = rng.choice(QUEUES)
            size = rng.choice((0, 20, 200, 900))
            in_ms = rng.choice((1, 50, 300, 2_500))
            made.append(
                SentMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=f"{key}:".encode() + rng.randbytes(size),
                    properties=f"UNIQ_KEY\x01{key}\x02".encode(),
                    unique_key=key,
                    deliver_at_ms=self._clock.now_ms() + in_ms if is_later else 0,
                    deliver_after_ms=in_ms if is_delayed and rng.random() < 0.5 else 0,
                )
            )
        return tuple(made)

    async def _begin(self, link: Link) -> None:
        rng = self.rng
        messages = self._messages(is_delayed=rng.random() < 0.2)
        # The store recognizes a stock client's single half message without a number.
        is_stock = len(messages) == 1 and rng.random() < 0.5
        name = messages[0].unique_key if is_stock else f"tx-{messages[0].unique_key}"
        tx = Tx(name=name, group=f"group-{rng.randrange(3)}")
        self._open.append(tx)
        await self._prepare(link, tx, messages, None if is_stock else 0)

    async def _prepare(
        self, link: Link, tx: Tx, messages: tuple[SentMessage, ...], number: int | None
    ) -> None:
        asked = c.Prepare(group=tx.group, transaction_id=tx.name, messages=messages, number=number)
        await self._do(link, asked, tx)

    async def _go_on(self, link: Link, tx: Tx) -> None:
        rng = self.rng
        if not tx.is_whole:
            request = tx.requests[-1]
            await self._prepare(link, tx, request.messages, request.number)
            return
        if tx.unsure:
            await self._do(link, tx.unsure.pop(), tx)
            self._leave_if_decided(tx)
            return
        chance = rng.random()
        row = rng.choice(tx.rows)
        if chance < 0.15:
            await self._grow_or_repeat(link, tx)
        elif chance < 0.25:
            await self._do(link, c.Park(half_offset=row, reason="by hand"), tx)
        elif chance < 0.35:
            await self._do(link, c.Resume(half_offset=row, by=self.name), tx)
        elif chance < 0.45:
            await self._do(link, c.CheckSent(half_offset=row, client=self.name), tx)
        elif chance < 0.50:
            await self._do(link, self._end(row, Resolution.UNKNOWN), tx)
        elif chance < 0.60:
            await self._race(link, tx, row)
        elif chance < 0.90:
            resolution = rng.choice((Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK))
            await self._do(link, self._end(row, resolution), tx)
        self._leave_if_decided(tx)

    def _leave_if_decided(self, tx: Tx) -> None:
        if tx.decision is not None:
            self._open.remove(tx)
            self._ended.append(tx)

    def _end(self, row: int, resolution: Resolution) -> c.End:
        # Each decision has a unique name, so that its author can be identified.
        by = f"{self.name}#{next(self._numbers)}"
        return c.End(half_offset=row, resolution=resolution, by=by, from_check=True)

    async def _grow_or_repeat(self, link: Link, tx: Tx) -> None:
        number = tx.requests[-1].number
        if number is None or len(tx.requests) == 3 or tx.states != {State.PREPARED}:
            request = self.rng.choice(tx.requests)
            await self._prepare(link, tx, request.messages, request.number)
        else:
            await self._prepare(link, tx, self._messages(), number + 1)

    async def _race(self, link: Link, tx: Tx, row: int) -> None:
        """Send both decisions at once; one of them wins."""
        ends = [self._end(row, one) for one in (Resolution.COMMIT, Resolution.ROLLBACK)]
        self.rng.shuffle(ends)
        works = [self._do(link, end, tx) for end in ends]
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ask_again(self, link: Link, tx: Tx) -> None:
        """Repeat a decision, which gets the same answer, or send the opposite, which is refused."""
        assert tx.states <= set(DECIDED)
        row = self.rng.choice(tx.rows)
        resolution = self.rng.choice((Resolution.COMMIT, Resolution.ROLLBACK))
        await self._do(link, self._end(row, resolution), tx)


class Consumer:
    """Reads one queue from its start, across all lives of the victim."""

    def __init__(self, queue: Queue, history: History) -> None:
        self.queue = queue
        self.history = history
        self._offset = 0

    async def work(self, link: Link) -> None:
        """Read until the process dies."""
        with contextlib.suppress(Lost):
            while True:
                await link.some_answers()
                asked = Pull(topic=self.queue[0], queue_id=self.queue[1], offset=self._offset)
                pulled = await link.ask(asked)
                assert isinstance(pulled, Pulled)
                if pulled.status is ReadStatus.BEYOND_END:
                    raise Wrong(f"{self.queue} ends at {pulled.end}, {self._offset} was read")
                if pulled.status is ReadStatus.NO_SUCH_QUEUE and self._offset:
                    raise Wrong(f"{self.queue} is gone")
                for offset, message in enumerate(pulled.messages, self._offset):
                    self.history.saw(self.queue, offset, seen(decode(message)))
                self._offset = pulled.next_offset
