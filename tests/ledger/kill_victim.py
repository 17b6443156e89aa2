"""A process that sells orders and dies. It forks a child for each life, so that dying is cheap.

Each line on stdin is a life: ``kind point number``. The child runs a transaction block of that kind
and kills itself at that point; at ``never`` it sells one order after another until it is killed
from outside. The process prints the child's process id at its start, and ``dead`` at its end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.client.producer.transaction import SendingBlock
from escrowmq.client.producer.transaction_steps import BlockStep
from tests.ledger.market import PAID, pay
from tests.ledger.shops import GROUP, Shop

#: In their order; a block that the caller commits has no COMMIT of ours.
STEPS = (BlockStep.FLUSH, BlockStep.HOLD, BlockStep.INSERT_ROW, BlockStep.COMMIT, BlockStep.DECIDE)
POINTS = tuple(f"{side}-{step.name}" for step in STEPS for side in ("before", "after"))
MAX_DURATION_S = 0.2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point_of: Callable[[], str]) -> None:
    """Have a producer's block kill the process before or after one of its steps."""
    perform = SendingBlock._perform

    def dying(block: Any, step: BlockStep) -> Any:
        side, _, name = point_of().partition("-")
        if name != step.name:
            return perform(block, step)
        if side == "before":
            die()
        done = perform(block, step)
        if not isinstance(done, Awaitable):
            die()
        return die_after(done)

    async def die_after(done: Awaitable[Any]) -> None:
        await done
        die()

    block_kind: Any = SendingBlock
    block_kind._perform = dying


class Victim:
    """One life of the seller."""

    def __init__(self, name_server: str, shop: Shop) -> None:
        self.name_server = name_server
        self.shop = shop

    def live(self, kind: str, point: str, number: int) -> None:
        arm(lambda: point)
        numbers = count(number) if point == "never" else iter((number,))
        if kind == "async":
            asyncio.run(self._sell_async(numbers))
        else:
            self._sell(kind, numbers)

    def _sell(self, kind: str, numbers: Iterator[int]) -> None:
        engine = self.shop.engine()
        producer = Producer(
            self.name_server, GROUP, ledger=self.shop.ledger(), max_duration_s=MAX_DURATION_S
        )
        for number in numbers:
            if kind == "session":
                with producer.transaction(Session(engine)) as tx:
                    pay(tx, number)
            elif kind == "caller":
                with Session(engine) as session, session.begin():
                    with producer.transaction(session) as tx:
                        pay(tx, number)
                    session.execute(sqlalchemy.text("SELECT 1"))
            else:
                connection = self.shop.connect()
                with producer.transaction(connection) as plain:
                    connection.execute(f"INSERT INTO orders (number) VALUES ({number})")
                    plain.send(PAID, b"%d" % number)
                connection.close()

    async def _sell_async(self, numbers: Iterator[int]) -> None:
        engine = self.shop.async_engine()
        producer = AsyncProducer(
            self.name_server, GROUP, ledger=SqlLedger(engine), max_duration_s=MAX_DURATION_S
        )
        for number in numbers:
            async with producer.transaction(AsyncSession(engine)) as tx:
                pay(tx, number)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(live: Callable[[str, Shop, str, str, int], None]) -> None:
    """Fork a child for each line of input; ``live`` is what the child does until it dies."""
    name_server, kind, url = sys.argv[1:]
    shop = Shop(kind=kind, url=url)
    for line in sys.stdin:
        way, point, number = line.split()
        child = os.fork()
        if child == 0:
            # Whatever fails in the child, it must not continue as a second parent.
            try:
                live(name_server, shop, way, point, int(number))
            finally:
                os._exit(1)
        say(str(child))
        _, status = os.waitpid(child, 0)
        say("dead" if os.WIFSIGNALED(status) else "alive")


def sell(name_server: str, shop: Shop, way: str, point: str, number: int) -> None:
    Victim(name_server, shop).live(way, point, number)


if __name__ == "__main__":
    main(sell)
