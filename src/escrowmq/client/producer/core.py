"""Shared core of the sync and the async producer: it starts on first use, on one event loop.

A forked process, or a program that runs a second event loop, gets new connections: the old ones
belong to the parent process, or to a loop that is closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from escrowmq.client.config import ProducerConfig, check_group, checked_topics
from escrowmq.client.messages.codecs import JSON, Codec, check_codec
from escrowmq.model.errors import RequestRefused, Unavailable

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.producer.checks import Ask
    from escrowmq.client.producer.janitor_schedule import Janitor
    from escrowmq.client.producer.producing import Producing

T = TypeVar("T")


class ProducerCore:
    """One producer, on the loop that it currently runs on."""

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        *,
        ledger: SqlLedger | None,
        ask: Ask | None,
        config: ProducerConfig,
        codec: Codec | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        # Imported here and below, so that a program loads only the modules that it uses.
        from escrowmq.client.network.routing import name_servers

        check_group(group)
        self.codec = JSON if codec is None else codec
        check_codec(self.codec, "producer")
        _check_ledger(ledger)
        self.topics = checked_topics(topics)
        self.servers = name_servers(servers)
        self.group = group
        self.ledger = ledger
        self.config = config
        self._ask = ask
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[Producing] | None = None
        self._janitor: Janitor | None = None

    @property
    def is_started(self) -> bool:
        """Whether the producer has started in this process."""
        return self._is_mine and _value_of(self._starting) is not None

    @property
    def _is_mine(self) -> bool:
        return self._process == os.getpid()

    async def started(self) -> Producing:
        """Return the producer on this loop; Unavailable if no name server answers in time."""
        if self._is_closed:
            raise Unavailable("client_closed", "make a new one")
        loop = asyncio.get_running_loop()
        if self._loop is not loop or not self._is_mine:
            self._check_loop()
            self._forget()
            self._loop = loop
        known = _value_of(self._starting)
        if known is not None:
            return known
        if self._starting is None or self._starting.done():
            self._starting = loop.create_task(self._start())
        # Several callers may wait for it; a cancelled one must not cancel the others.
        return await asyncio.shield(self._starting)

    def _check_loop(self) -> None:
        is_elsewhere = self._loop is not None and not self._loop.is_closed()
        if is_elsewhere and self._is_mine:
            raise RequestRefused(
                "other_loop", "an async producer belongs to the event loop it was first used on"
            )

    async def _start(self) -> Producing:
        from escrowmq.client.network.trying import until_done
        from escrowmq.client.producer.producing import Producing

        checks = None
        if self.ledger is not None or self._ask is not None:
            from escrowmq.client.producer.checks import ProducerChecks

            checks = ProducerChecks(self.ledger, self._ask)
        producing = Producing(self.servers, self.group, self.config, checks, self.codec)
        until = asyncio.get_running_loop().time() + self.config.timeout_s
        try:
            await until_done(producing.start, until, is_repeatable=True)
            await producing.find(self.topics, until)
        except BaseException:
            await producing.close()
            raise
        if self.ledger is not None:
            from escrowmq.client.producer.janitor_schedule import Janitor

            self._janitor = Janitor(producing, self.ledger)
            self._janitor.start(self.config.clean_ledger_every_s)
        return producing

    async def call(self, request: Callable[[Producing], Awaitable[T]]) -> T:
        """Make a request of the producer; start it first if it has not started."""
        return await request(await self.started())

    async def close(self) -> None:
        """Wait for calls in flight, and unregister."""
        self._is_closed = True
        starting, janitor = self._starting, self._janitor
        if starting is None or not self._is_mine:
            return
        if self._loop is not asyncio.get_running_loop():
            self._check_loop()
            # The loop that the producer ran on is closed, and its connections with it.
            return
        self._forget()
        if janitor is not None:
            await janitor.close()
        await asyncio.wait((starting,))
        known = _value_of(starting)
        if known is not None:
            await known.close()

    async def clean_ledger(self) -> int:
        """Delete ledger rows of durably decided transactions; return how many."""
        await self.started()
        if self._janitor is None:
            raise RequestRefused(
                "producer_without_ledger", "there is nothing to clean", producer_group=self.group
            )
        return await self._janitor.clean()


def _check_ledger(ledger: object) -> None:
    """Refuse a URL or an engine where a ledger is needed."""
    if ledger is not None and not hasattr(ledger, "transaction_async"):
        raise RequestRefused(
            "bad_config", "must be a SqlLedger: ledger=SqlLedger(…)", key="producer.ledger",
            type=type(ledger).__name__,
        )  # fmt: skip


def _value_of(task: asyncio.Task[Producing] | None) -> Producing | None:
    """Return the result of a task; None if it failed or is not done."""
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()
