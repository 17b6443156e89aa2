"""A consumer that ships orders and is killed at one point of its block, which writes and sends.

A life handles what the broker delivers, as any consumer does. It dies of the message with its own
number. ``kill_victim`` describes the protocol.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.database import block
from escrowmq.client.database.block import Act, Execute
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Received
from escrowmq.client.producer.producer import AsyncProducer, Producer
from tests.ledger.async_hands import place
from tests.ledger.chains import SHIPPED
from tests.ledger.kill_victim import MAX_DURATION_S, arm, die, main
from tests.ledger.market import PAID
from tests.ledger.shops import GROUP, Order, Shop

SHIPPING = "shipping"
STATEMENTS = {
    "ENTRY": "INSERT INTO escrowmq_consumed",
    "FINISH": "UPDATE escrowmq_consumed",
    "ROW": "INSERT INTO escrowmq_ledger",
}
#: In their order. ACK is the acknowledgement: before it the handler has not returned, after it the
#: group's offset is stored.
STEPS = ("ENTRY", "FLUSH", "HOLD", "FINISH", "ROW", "COMMIT", "DECIDE", "ACK")
POINTS = tuple(f"{side}-{step}" for step in STEPS for side in ("before", "after"))


def name_of(step: Execute | Act) -> str:
    """Return the name of a step on the connection, or an empty string if no life dies at it."""
    if isinstance(step, Act):
        return step.name
    return next((name for name, sql in STATEMENTS.items() if step.sql.startswith(sql)), "")


class Victim:
    """One life of the consumer."""

    def __init__(self, name_server: str, shop: Shop, point: str, number: int) -> None:
        self.name_server = name_server
        self.shop = shop
        self.point = point
        self.number = number
        #: Whether the current message is the one to die of.
        self.is_last = False
        self.over = threading.Event()

    def live(self, way: str) -> None:
        self._arm()
        if way == "async":
            asyncio.run(self._ship_async())
        else:
            self._ship(way)
        # It was stopped cleanly, so the broker has the acknowledgement.
        die()

    def _arm(self) -> None:
        perform = block.perform

        def performed(step: Execute | Act, connection: Any) -> Any:
            name = name_of(step)
            self._die_at(f"before-{name}")
            done = perform(step, connection)
            if isinstance(done, Awaitable):
                return self._die_after(done, name)
            self._die_at(f"after-{name}")
            return done

        vars(block).update(perform=performed)
        # The above handles COMMIT, because the caller may issue it.
        is_here = not self.point.endswith("COMMIT")
        arm(lambda: self.point if is_here and self.is_last else "never")

    async def _die_after(self, done: Awaitable[Any], name: str) -> Any:
        result = await done
        self._die_at(f"after-{name}")
        return result

    def _die_at(self, point: str) -> None:
        if self.is_last and point == self.point:
            die()

    def _begin(self, message: Received) -> int:
        number = int(message.body)
        self.is_last = number == self.number
        return number

    def _end(self) -> None:
        self._die_at("before-ACK")
        if self.is_last:
            self.over.set()

    def _ship(self, way: str) -> None:
        consumer = Consumer(self.name_server, SHIPPING, concurrency=1)
        producer = Producer(
            self.name_server, GROUP, ledger=self.shop.ledger(), max_duration_s=MAX_DURATION_S
        )
        ship = shipping(way, self.shop, consumer, producer)

        @consumer.subscribe(PAID)
        def handle(message: Received) -> None:
            self._begin(message)
            ship(message)
            self._end()

        with consumer:
            self.over.wait()

    async def _ship_async(self) -> None:
        engine = self.shop.async_engine()
        consumer = AsyncConsumer(self.name_server, SHIPPING, concurrency=1)
        producer = AsyncProducer(
            self.name_server, GROUP, ledger=SqlLedger(engine), max_duration_s=MAX_DURATION_S
        )

        @consumer.subscribe(PAID)
        async def handle(message: Received) -> None:
            number = self._begin(message)
            async with (
                AsyncSession(engine) as session,
                consumer.transaction(session, producer=producer) as tx,
            ):
                await place(session, number)
                tx.send(SHIPPED, b"%d" % number)
            self._end()

        async with consumer:
            await asyncio.to_thread(self.over.wait)


def shipping(
    way: str, shop: Shop, consumer: Consumer, producer: Producer
) -> Callable[[Received], None]:
    """Return a handler that ships the order of a message and sends a message about it."""
    engine = shop.engine()

    def in_session(message: Received) -> None:
        with ExitStack() as stack:
            session = stack.enter_context(Session(engine))
            if way == "caller":
                stack.enter_context(session.begin())
            tx = stack.enter_context(consumer.transaction(session, producer=producer))
            session.add(Order(number=int(message.body)))
            tx.send(SHIPPED, message.body)

    def on_connection(message: Received) -> None:
        connection = shop.connect()
        with consumer.transaction(connection, producer=producer) as tx:
            connection.execute(f"INSERT INTO orders (number) VALUES ({int(message.body)})")
            tx.send(SHIPPED, message.body)
        connection.close()

    return on_connection if way == "driver" else in_session


def ship(name_server: str, shop: Shop, way: str, point: str, number: int) -> None:
    Victim(name_server, shop, point, number).live(way)


if __name__ == "__main__":
    main(ship)
