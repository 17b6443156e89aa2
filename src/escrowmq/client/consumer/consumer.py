"""Consumers: they call handlers for messages, or are iterated over; in sync and async form.

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
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, overload

from escrowmq.client.consumer.subscriptions import Subscriptions, Wanted, warn_of_stop
from escrowmq.client.messages.body_reading import MessageHandler, reader_of
from escrowmq.client.messages.handling import Left
from escrowmq.client.network.background import background
from escrowmq.client.with_blocks import AsyncWithBlock, WithBlock
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.consumer.consuming import GroupMember
    from escrowmq.client.messages.messages import Received

T = TypeVar("T")


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _running(core: GroupMember | None) -> GroupMember:
    if core is None:
        raise RequestRefused("consumer_not_started", "start it first, or use it in a with block")
    return core


class AsyncConsumer(Subscriptions, AsyncWithBlock):
    """Consumer for programs with an event loop. Handlers may be async or sync functions."""

    _core: GroupMember | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Join the group and start to consume."""
        self._loop = asyncio.get_running_loop()
        self._core = self._core or await self._start()

    def _subscribe_late(self, wanted: Wanted) -> None:
        loop = self._loop
        if loop is not None and loop.is_running() and not _is_here(loop):
            # A sync handler subscribes from its own thread: let the loop do it, and wait.
            asyncio.run_coroutine_threadsafe(self._add(wanted), loop).result()
        elif self._core is not None:
            self._core.add(*wanted)
            self._core.announce_soon()

    async def _add(self, wanted: Wanted) -> None:
        if self._core is not None:
            await self._core.subscribe(*wanted)

    async def close(self) -> None:
        """Take no more messages, wait for handlers and leave the group. ``start`` may follow."""
        core, self._core = self._core, None
        if core is not None:
            await core.stop()

    def stop(self) -> Coroutine[Any, Any, None]:
        """Old name of ``close``."""
        warn_of_stop(type(self).__name__)
        return self.close()

    async def _enter(self) -> None:
        await self.start()

    async def _leave(self, _error: BaseException | None) -> None:
        await self.close()

    async def run(self) -> None:
        """Consume until SIGTERM, Ctrl-C or cancellation, then close."""
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
        self, topic: str, *, at_ms: int | None = None, offset: int | None = None, queue_id: int = -1
    ) -> None:
        """Move the whole group to a time, or to an offset in one queue or in all queues."""
        if (at_ms is None) == (offset is None):
            raise RequestRefused("seek_illegal", "name a time or an offset, one of them")
        calls = _running(self._core).calls
        since_ms = -1 if at_ms is None else at_ms
        await calls.reset(topic, at_ms=since_ms, offset=offset, queue_id=queue_id)

    @overload
    def messages(
        self, topic: str, tag: str = "*", *, body_type: None = None
    ) -> AsyncIterator[Received]: ...

    @overload
    def messages(
        self, topic: str, tag: str = "*", *, body_type: type[T]
    ) -> AsyncIterator[Received[T]]: ...

    async def messages(
        self, topic: str, tag: str = "*", *, body_type: Any = None
    ) -> AsyncIterator[Received[Any]]:
        """Iterate over messages. A message is consumed when the loop asks for the next one.

        The message at which the loop ends, by ``break`` or an error, is delivered again. With
        ``body_type`` each message has its decoded body as ``value``. A message that cannot be
        decoded does not reach the loop; it is retried and then becomes a dead letter.
        """
        core = _running(self._core)
        reader = None if body_type is None else reader_of(body_type, self._codecs)
        # The number of running handlers bounds this queue: each adds one message and waits.
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

        await core.subscribe(topic, tag, MessageHandler(hand_over, reader))
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


class Consumer(Subscriptions, WithBlock):
    """Consumer for programs without an event loop. Handlers run in threads."""

    _core: AsyncConsumer | None = None

    def start(self) -> None:
        """Join the group and start to consume, in the background."""
        if self._core is None:
            core = AsyncConsumer(self._servers, self.group, self.config, codec=self._codecs)
            core._wanted = self._wanted  # noqa: SLF001 - the sync form of the same consumer
            self._core = core
            try:
                background().run(core.start())
            except BaseException:
                self._core = None
                raise

    def _subscribe_late(self, wanted: Wanted) -> None:
        if self._core is not None:
            self._core._subscribe_late(wanted)  # noqa: SLF001 - as above

    def close(self) -> None:
        """Take no more messages, wait for handlers and leave the group. ``start`` may follow."""
        core, self._core = self._core, None
        if core is not None:
            background().run(core.close())

    def stop(self) -> None:
        """Old name of ``close``."""
        warn_of_stop(type(self).__name__)
        self.close()

    def _enter(self) -> None:
        self.start()

    def _leave(self, _error: BaseException | None) -> None:
        self.close()

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C, then close. Call it from the main thread."""
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
        self, topic: str, *, at_ms: int | None = None, offset: int | None = None, queue_id: int = -1
    ) -> None:
        """Move the whole group to a time, or to an offset in one queue or in all queues."""
        core = self._core or AsyncConsumer(self._servers, self.group)
        background().run(core.seek(topic, at_ms=at_ms, offset=offset, queue_id=queue_id))

    @overload
    def messages(
        self, topic: str, tag: str = "*", *, body_type: None = None, timeout_s: float | None = None
    ) -> Generator[Received, None, None]: ...

    @overload
    def messages(
        self, topic: str, tag: str = "*", *, body_type: type[T], timeout_s: float | None = None
    ) -> Generator[Received[T], None, None]: ...

    def messages(
        self, topic: str, tag: str = "*", *, body_type: Any = None, timeout_s: float | None = None
    ) -> Generator[Received[Any], None, None]:
        """Iterate over messages. A message is consumed when the loop asks for the next one.

        The message at which the loop ends, by ``break`` or an error, is delivered again. With
        ``body_type`` each message has its decoded body as ``value``. A message that cannot be
        decoded does not reach the loop; it is retried and then becomes a dead letter. With
        ``timeout_s`` the loop ends when no message has arrived for that long.
        """
        core = self._core
        if core is None:
            raise RequestRefused("consumer_not_started", "start it first, or use a with block")
        loop = background()
        handed: queue.Queue[Received] = queue.Queue()
        wanted: asyncio.Queue[None] = asyncio.Queue()

        async def pass_on() -> None:
            looping = core.messages(topic, tag, body_type=body_type)
            async with aclosing(looping) as messages:  # type: ignore[type-var]
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
