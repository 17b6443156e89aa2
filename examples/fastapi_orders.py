"""An order service whose payment is in the database if and only if its message is sent.

Set NAMESRV_ADDR and DATABASE_URL, and run it:

    uvicorn --factory examples.fastapi_orders:service
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from escrowmq import Producer, SqlLedger


class Base(DeclarativeBase):
    """The service's tables."""


class Order(Base):
    """A customer's order."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[bool] = mapped_column(default=False)


def create_app(engine: Engine, producer: Producer) -> FastAPI:
    """Make the service on a database and on a producer whose ledger is in that database."""
    app = FastAPI()

    @app.post("/orders", status_code=201)
    def create() -> dict[str, int]:
        """Take an order. The database generates its id, and the message carries that id."""
        with Session(engine) as session:
            with producer.transaction(session) as tx:
                order = Order()
                session.add(order)
                # The SDK calls this at the end of the block, when the database has generated the
                # id.
                tx.send("order-created", lambda: str(order.id))
            return {"id": order.id}

    @app.post("/orders/{number}/pay")
    def pay(number: int) -> dict[str, bool]:
        """Pay for an order, once."""
        with Session(engine) as session, producer.transaction(session) as tx:
            order = session.get(Order, number, with_for_update=True)
            if order is None:
                # An exception rolls everything back, and no message is sent.
                raise HTTPException(404, "there is no such order")
            if not order.paid:
                order.paid = True
                tx.send("order-paid", str(number), key=number)
        return {"paid": True}

    return app


def service() -> FastAPI:
    """Make the service from the environment."""
    engine = create_engine(os.environ["DATABASE_URL"])
    Base.metadata.create_all(engine)
    ledger = SqlLedger(engine)
    ledger.create()
    return create_app(engine, Producer(os.environ["NAMESRV_ADDR"], group="orders", ledger=ledger))
