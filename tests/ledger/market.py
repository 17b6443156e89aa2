"""A shop, a broker, and a producer between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy.orm import Session

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.server import Server
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from tests.ledger.shops import GROUP, Order, Shop
from tests.unit.broker.wire import clock_of, eventually, serving, visible

T = TypeVar("T")

PAID = "order-paid"
DAY_MS = 86_400_000


@asynccontextmanager
async def market(
    shop: Shop,
    path: Path,
    *,
    is_on_time: bool = False,
    now_ms: int | None = None,
    **sections: Any,
) -> AsyncIterator[Market]:
    """Yield a market; unless ``is_on_time``, all deadlines are past at each check."""
    clock = ManualClock(now_ms or int(time.time() * 1_000)) if is_on_time else None
    async with serving(path / "broker", clock, **sections) as server:
        made = Market(shop, server, is_on_time=is_on_time)
        try:
            yield made
        finally:
            await made.close()


class Market:
    """A shop and a broker, which runs in this event loop; plain producers run in threads."""

    def __init__(self, shop: Shop, server: Server, *, is_on_time: bool = False) -> None:
        self.shop = shop
        self._is_on_time = is_on_time
        self.server = server
        self.engine = shop.engine()
        self._opened: list[Producer | AsyncProducer] = []

    def producer(self, **settings: Any) -> Producer:
        settings.setdefault("ledger", self.shop.ledger())
        made = Producer(self.server.name_address, GROUP, **settings)
        self._opened.append(made)
        return made

    def async_producer(self, **settings: Any) -> AsyncProducer:
        settings.setdefault("ledger", self.shop.ledger())
        made = AsyncProducer(self.server.name_address, GROUP, **settings)
        self._opened.append(made)
        return made

    def session(self) -> Session:
        return Session(self.engine)

    async def close(self) -> None:
        for one in self._opened:
            await (asyncio.to_thread(one.close) if isinstance(one, Producer) else one.close())
        self.engine.dispose()

    def paid(self, topic: str = PAID) -> set[int]:
        """Return the orders whose messages consumers can see."""
        return {int(one.body) for queue in range(16) for one in visible(self.server, topic, queue)}

    def undecided(self) -> list[int]:
        """Return the first half message of each undecided transaction."""
        core = self.server.broker.store.core
        halves = filter(None, map(core.half, range(core.table.end)))
        return [
            half.half_offset
            for half in halves
            if half.state is State.PREPARED and half.first == half.half_offset
        ]

    def states(self) -> list[State]:
        """Return the states of all half messages."""
        core = self.server.broker.store.core
        return [half.state for half in filter(None, map(core.half, range(core.table.end)))]

    @contextmanager
    def unanswered(self, code: int) -> Iterator[None]:
        """Make the broker ignore such requests."""
        handle = self.server.broker.handle

        def heard(connection: ClientConnection, frame: RemotingFrame) -> None:
            if frame.code != code:
                handle(connection, frame)

        self.server.broker.handle = heard  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.server.broker.handle = handle  # type: ignore[method-assign]

    @contextmanager
    def listening(self) -> Iterator[list[int]]:
        """Yield the codes of the requests that the broker gets."""
        handle, codes = self.server.broker.handle, []

        def heard(connection: ClientConnection, frame: RemotingFrame) -> None:
            codes.append(frame.code)
            handle(connection, frame)

        self.server.broker.handle = heard  # type: ignore[method-assign]
        try:
            yield codes
        finally:
            self.server.broker.handle = handle  # type: ignore[method-assign]

    def check_all(self) -> None:
        """Ask the producers about every undecided transaction, as the pipeline does."""
        for half_offset in self.undecided():
            half = self.server.broker.store.core.half(half_offset)
            assert half is not None
            age_ms = self.server.broker.clock.now_ms() - half.stored_at_ms
            if not self._is_on_time and age_ms < DAY_MS:
                # Client sessions do not notice a suspended clock.
                clock_of(self.server).suspend(seconds=DAY_MS // 1_000)
            verdict = Verdict(
                half_offset=half_offset,
                kind=VerdictKind.ASK,
                state=State.PREPARED,
                checks_sent=half.checks_sent,
            )
            self.server.broker.checking.obey([verdict], lambda _outcomes: None)

    async def settled(self) -> None:
        """Check until nothing is undecided."""
        await eventually(lambda: self.server.broker.clients.producers(GROUP))

        def is_settled() -> bool:
            self.check_all()
            return not self.undecided()

        await eventually(is_settled)

    async def hears(self, *states: State) -> None:
        """Wait until producers have ended their half messages like this, without a check."""
        await eventually(lambda: self.states() == list(states))

    async def agrees(self, numbers: set[int]) -> None:
        """Wait until all is decided; then consumers see exactly the orders in the database."""
        await self.settled()
        await eventually(lambda: self.paid() == numbers)
        assert self.shop.orders() == numbers


def pay(tx: Any, number: int) -> None:
    """Write an order into the database, and send its message."""
    tx.db.add(Order(number=number))
    tx.send(PAID, b"%d" % number, key=str(number))


def id_of(order: Order) -> str:
    """Return the id that the database has assigned; there is none before the session's flush."""
    (number,) = sqlalchemy.inspect(order).identity or ("none",)
    return str(number)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
