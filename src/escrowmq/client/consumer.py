"""Consumers: handlers that are called for messages, or loops over them; plain and async.

consumer = Consumer("127.0.0.1:9876", group="shipping")

@consumer.subscribe("order-paid")
def ship(message):
...

consumer.run()
"""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, overload

from escrowmq.client.background import background
from escrowmq.client.config import ConsumerConfig, check_group
from escrowmq.client.handling import Handler, Left
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import EXPRESSION_CHARS_MAX, check_name, too_long

if TYPE_CHECKING:
    from types import TracebackType

    from escrowmq.client.consume_transaction import (
        AsyncChainTransaction,
        ChainTransaction,
        ConsumeTransaction,
    )
    from escrowmq.client.consuming import Consuming
    from escrowmq.client.messages import Received
    from escrowmq.client.producer import AsyncProducer, Producer

DatabaseT = TypeVar("DatabaseT")
HandlerT = TypeVar("HandlerT", bound=Callable[..., object])

Wanted: TypeAlias = "tuple[str, str, Handler]"
"""A topic, its tags, and what handles its messages."""


class _Subscriptions(ABC):
    """What both kinds of consumer share: what is subscribed to before they start."""

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        config: ConsumerConfig | None = None,
        **settings: Any,  # noqa: ANN401 - fields of ConsumerConfig, which checks them
    ) -> None:
        check_group(group)
        self._servers = servers
        self.group = group
        try:
            self.config = replace(config or ConsumerConfig(), **settings)
        except TypeError as error:
            raise RequestRefused("bad_config", str(error), key="consumer") from None
        self._wanted: list[Wanted] = []

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[HandlerT], HandlerT]:
        """Have a function called with each message; ``tag`` may be several with ``||`` between.

        A consumer that has been started reads the topic at once.
        """
        check_name("topic", topic)
        if len(tag) > EXPRESSION_CHARS_MAX:
            raise too_long("tag", tag, EXPRESSION_CHARS_MAX)

        def register(handler: HandlerT) -> HandlerT:
            wanted = (topic, tag, handler)
            # First, so that a start on another thread finds it, or is found by the next line.
            self._wanted.append(wanted)
            try:
                self._subscribe_late(wanted)
            except BaseException:
                self._wanted.remove(wanted)
                raise
            return handler

        return register

    @abstractmethod
    def _subscribe_late(self, wanted: Wanted) -> None:
        """Have a consumer that has been started read this, too."""

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None
    ) -> ConsumeTransaction[DatabaseT]: ...

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None, *, producer: Producer
    ) -> ChainTransaction[DatabaseT]: ...

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None, *, producer: AsyncProducer
    ) -> AsyncChainTransaction[DatabaseT]: ...

    def transaction(
        self,
        db: DatabaseT,
        message: Received | None = None,
        *,
        producer: Producer | AsyncProducer | None = None,
    ) -> (
        ConsumeTransaction[DatabaseT]
        | ChainTransaction[DatabaseT]
        | AsyncChainTransaction[DatabaseT]
    ):
        """Do a handler's work and record its message in one database transaction.

        ``db`` is a session or connection; the block commits it, unless a block of the caller's
        does.  Inside a handler the message is known; elsewhere, give it.  With a producer whose
        ledger is in the same database, the block also sends: its messages go out if, and only if,
        the database commits.
        """
        from escrowmq.client import consume_transaction as blocks

        if producer is None:
            return blocks.ConsumeTransaction(self.group, db, message)
        return blocks.chain_on(producer, self.group, db, message)

    async def _start(self) -> Consuming:
        from escrowmq.client.consuming import Consuming

        core = Consuming(self._servers, self.group, self.config)
        wanted = list(self._wanted)
        for one in wanted:
            core.add(*one)
        try:
            await core.start()
            # What was subscribed to meanwhile.
            while len(wanted) < len(self._wanted):
                wanted.append(self._wanted[len(wanted)])
                await core.subscribe(*wanted[-1])
        except BaseException:
            await core.stop()
            raise
        return core


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this code runs on the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _running(core: Consuming | None) -> Consuming:
    if core is None:
        raise RequestRefused("consumer_not_started", "start it first, or use it in a with block")
    return core


class AsyncConsumer(_Subscriptions):
    """For programs with an event loop.  Handlers may be async or plain functions."""

    _core: Consuming | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Join the group and begin."""
        self._loop = asyncio.get_running_loop()
        self._core = self._core or await self._start()

    def _subscribe_late(self, wanted: Wanted) -> None:
        loop = self._loop
        if loop is not None and loop.is_running() and not _is_here(loop):
            # A plain handler runs in a thread.
            asyncio.run_coroutine_threadsafe(self._add(wanted), loop).result()
        elif self._core is not None:
            self._core.add(*wanted)
            self._core.announce_soon()

    async def _add(self, wanted: Wanted) -> None:
        if self._core is not None:
            await self._core.subscribe(*wanted)

    async def stop(self) -> None:
        """Take nothing more, wait for the handlers, leave the group."""
        core, self._core = self._core, None
        if core is not None:
            await core.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C, or until it is cancelled; then stop in order."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, stopped.set)
        try:
            async with self:
                await stopped.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def seek(
        self,
        topic: str,
        *,
        at_ms: int | None = None,
        offset: int | None = None,
        queue_id: int = -1,
    ) -> None:
        """Send the whole group to a time, or to an offset of one queue or of all."""
        if (at_ms is None) == (offset is None):
            raise RequestRefused("seek_illegal", "name a time or an offset, one of them")
        calls = _running(self._core).calls
        if offset is not None:
            await calls.reset(topic, offset=offset, queue_id=queue_id)
        else:
            await calls.reset(topic, at_ms=at_ms or 0, queue_id=queue_id)

    async def messages(self, topic: str, tag: str = "*") -> AsyncIterator[Received]:
        """Loop over messages.  One is consumed when the next is asked for.

        The one that a loop is left with, by ``break`` or by an error, comes again.
        """
        core = _running(self._core)
        # Bounded by the handlers that may run: each brings one message and waits.
        handed: asyncio.Queue[tuple[Received, asyncio.Future[None]]] = asyncio.Queue()
        waiting: set[asyncio.Future[None]] = set()

        async def hand_over(message: Received) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.add(done)
            handed.put_nowait((message, done))
            try:
                await done
            finally:
                waiting.discard(done)

        await core.subscribe(topic, tag, hand_over)
        try:
            while True:
                message, done = await handed.get()
                yield message
                if not done.done():
                    done.set_result(None)
        finally:
            for done in waiting:
                if not done.done():
                    done.set_exception(Left())
            await core.unsubscribe(topic)


class Consumer(_Subscriptions):
    """For programs without an event loop.  Handlers run in threads."""

    _core: AsyncConsumer | None = None

    def start(self) -> None:
        """Join the group and begin, in the background."""
        if self._core is None:
            core = AsyncConsumer(self._servers, self.group, self.config)
            core._wanted = self._wanted  # noqa: SLF001 - one consumer in two forms
            self._core = core
            try:
                background().run(core.start())
            except BaseException:
                self._core = None
                raise

    def _subscribe_late(self, wanted: Wanted) -> None:
        if self._core is not None:
            self._core._subscribe_late(wanted)  # noqa: SLF001 - as above

    def stop(self) -> None:
        """Take nothing more, wait for the handlers, leave the group."""
        core, self._core = self._core, None
        if core is not None:
            background().run(core.stop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C; then stop in order.  For the main thread."""
        stopped = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        try:
            with self:
                stopped.wait()
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)

    def seek(
        self,
        topic: str,
        *,
        at_ms: int | None = None,
        offset: int | None = None,
        queue_id: int = -1,
    ) -> None:
        """Send the whole group to a time, or to an offset of one queue or of all."""
        core = self._core or AsyncConsumer(self._servers, self.group)
        background().run(core.seek(topic, at_ms=at_ms, offset=offset, queue_id=queue_id))

    def messages(
        self, topic: str, tag: str = "*", *, timeout_s: float | None = None
    ) -> Generator[Received, None, None]:
        """Loop over messages.  One is consumed when the next is asked for.

        The one that a loop is left with, by ``break`` or by an error, comes again.  With
        ``timeout_s`` the loop ends when no message came for so long.
        """
        core = self._core
        if core is None:
            raise RequestRefused("consumer_not_started", "start it first, or use a with block")
        loop = background()
        handed: queue.Queue[Received] = queue.Queue()
        wanted: asyncio.Queue[None] = asyncio.Queue()

        async def pass_on() -> None:
            async with aclosing(core.messages(topic, tag)) as messages:  # type: ignore[type-var]
                await wanted.get()
                async for message in messages:
                    handed.put(message)
                    await wanted.get()

        passing = asyncio.run_coroutine_threadsafe(pass_on(), loop.loop)
        passing.add_done_callback(lambda _: handed.put_nowait(None))  # type: ignore[arg-type]
        try:
            while True:
                loop.loop.call_soon_threadsafe(wanted.put_nowait, None)
                message = handed.get(timeout=timeout_s)
                if message is None:
                    passing.result()
                    return
                yield message
        except queue.Empty:
            return
        finally:
            passing.cancel()
