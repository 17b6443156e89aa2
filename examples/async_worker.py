"""A worker that ships paid orders and reports each shipment once, even if a message is redelivered.

The consumed message, the shipment and the message that is sent are one database transaction.

Set NAMESRV_ADDR and DATABASE_URL, such as sqlite+aiosqlite:///shipping.db, and run it:

    python -m examples.async_worker
"""

from __future__ import annotations

import asyncio
import os

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from escrowmq import AsyncConsumer, AsyncProducer, GiveUp, Received, RetryLater, SqlLedger


class Base(DeclarativeBase):
    """The worker's tables."""


class Shipment(Base):
    """A parcel that was sent for an order."""

    __tablename__ = "shipments"

    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


async def make_tables(engine: AsyncEngine) -> None:
    """Create the worker's table, and the tables that remember its messages."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await SqlLedger(engine).create_async()


def create_worker(address: str, engine: AsyncEngine, producer: AsyncProducer) -> AsyncConsumer:
    """Make the worker; ``run`` it, or use it in an ``async with`` block."""
    consumer = AsyncConsumer(address, group="shipping", concurrency=8, retries_max=5)

    @consumer.subscribe("order-paid")
    async def ship(message: Received) -> None:
        if not message.body.isdigit():
            # No retry can make this body valid, so send it to the dead-letter topic at once.
            raise GiveUp
        async with (
            AsyncSession(engine) as session,
            consumer.transaction(session, message, producer=producer) as tx,
        ):
            tx.db.add(Shipment(order_id=int(message.body)))
            tx.send("order-shipped", message.body, key=message.key)
            if await is_closed():
                raise RetryLater(after_ms=60_000)

    return consumer


def create_producer(address: str, engine: AsyncEngine) -> AsyncProducer:
    """Make the producer; its ledger is in the worker's own database."""
    return AsyncProducer(address, group="shipping", ledger=SqlLedger(engine))


async def is_closed() -> bool:
    """Ask the warehouse."""
    return False


async def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    engine = create_async_engine(os.environ["DATABASE_URL"])
    await make_tables(engine)
    address = os.environ["NAMESRV_ADDR"]
    async with create_producer(address, engine) as producer:
        await create_worker(address, engine, producer).run()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
