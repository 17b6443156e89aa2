"""Runs a program's blocks as a user's code would, and tells the model the expected outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any

from escrowmq.client.messages.handling import AlreadyConsumed
from escrowmq.model.errors import EscrowError, OutcomeUnknown, Unavailable
from tests.ledger.borders.model import Attempt, Wrong
from tests.ledger.borders.programs import (
    Backup,
    Block,
    CommitByHand,
    Nest,
    Orphan,
    Part,
    Pay,
    Raise,
    Read,
    Restart,
    Restore,
    Savepoint,
    Settle,
    Step,
    Sweep,
)
from tests.ledger.borders.world import PAID, SHIPPED, World
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.shops import new_id

#: The drivers' errors for a duplicate row.
CLASHES = ("UniqueViolation", "UniqueViolationError", "IntegrityError")


class Planned(Exception):
    """An error of the user's code."""


async def run_step(world: World, step: Step) -> None:
    """Run one step of a program."""
    match step:
        case Block():
            await BlockRun(world, step).run()
        case Orphan():
            await world.orphan()
        case Sweep():
            await world.sweep()
        case Settle():
            world.settle()
        case Read():
            world.read()
        case Restart():
            await world.restart()
        case Backup():
            await world.backup(step.chooses)
        case Restore():
            await world.restore(step.chooses)


class BlockRun:
    """The run of one block."""

    def __init__(self, world: World, block: Block) -> None:
        self.world = world
        self.block = block
        self.attempt = Attempt()
        self._savepoints = 0
        self._has_committed_by_hand = False
        self._is_cancelled = False

    async def run(self) -> None:
        """Run the block, and tell the model how it ended."""
        world, block = self.world, self.block
        world.model.attempts.append(self.attempt)
        world.attempt = self.attempt
        world.after_hold = self._hook(block.after_hold)
        world.before_decision = self._hook(block.before_decision)
        expects: bool | None = True
        try:
            await self._cancelled_or_not()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is judged
            expects = self._expected(error)
            if not isinstance(error, Planned):
                with suppress(Exception):
                    await world.hand.forsake()
        finally:
            world.attempt = world.after_hold = world.before_decision = world.on_held = None
            if self._is_cancelled:
                await world.hand.close()
        if self._has_committed_by_hand and expects is True and self.attempt.told:
            raise Wrong("a commit inside the block was accepted")
        shop = world.shop
        world.model.ended(self.attempt, shop.orders(), consumed(shop), expects=expects)
        world.counts["blocks"] += 1
        if self.attempt.is_committed or expects is True:
            world.counts["commits"] += 1
            if block.kind != "producer" and self.attempt.consumes:
                world.counts["chains" if block.kind == "chain" else "consumed"] += 1

    def _hook(self, what: str) -> Callable[[], Awaitable[None]] | None:
        world, chooses = self.world, self.block.chooses
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "lose": world.lose,
            "sweep": world.sweep_inside,
            "backup": partial(world.backup, chooses),
            "restore": partial(world.restore, chooses),
        }
        return found.get(what)

    async def _cancelled_or_not(self) -> None:
        if not self.block.cancelled_at:
            await self._block()
            return
        cancelled = CancelledAt(self._block(), self.block.cancelled_at)
        if self.block.is_cancelled_late:
            cancelled.count_later()
            self.world.on_held = cancelled.count
        try:
            await asyncio.create_task(cancelled.run())
        finally:
            self._is_cancelled = cancelled.has_come
            self.world.counts["cancels"] += cancelled.has_come

    def _expected(self, error: BaseException) -> bool | None:
        """Return what an error means for the database; None if only the database knows."""
        counts = self.world.counts
        if isinstance(error, Wrong):
            raise error
        if isinstance(error, Planned):
            counts["raises"] += 1
            return False
        code = error.code if isinstance(error, EscrowError) else ""
        if self._has_committed_by_hand:
            # The user's next statements may also fail in the driver.
            counts["commits by hand refused"] += code == "transaction_ended_inside"
            counts["refusals"] += 1
            self.attempt.is_broken_by_user = True
            return None
        if self._is_cancelled:
            # A driver that is cancelled inside a savepoint may raise its own error.
            counts["unknown outcomes"] += isinstance(error, OutcomeUnknown)
            return None
        if self._is_known(error, code):
            counts["consumed again"] += 1
            return False
        # After a cancel, SQLAlchemy may leave SQLite locked for a while.
        if isinstance(error, Unavailable) and (counts["interruptions"] or counts["cancels"]):
            counts["unavailable"] += 1
            counts["refusals"] += 1
            return False
        raise error

    def _is_known(self, error: BaseException, code: str) -> bool:
        mine, model = self.attempt.consumes, self.world.model
        before = [one for one in model.attempts if one is not self.attempt]
        if isinstance(error, AlreadyConsumed):
            return any(one.consumes == mine and one.may_have_committed for one in before)
        if code == "consumed_in_part":
            return any(one.consumes == mine and one.is_broken_by_user for one in before)
        return False

    async def _block(self) -> None:
        world, block = self.world, self.block
        hand = world.hand
        is_callers = block.is_callers and world.driver.is_below_sqlalchemy
        async with hand.database(block.grip, is_callers=is_callers) as db:
            async with hand.entered(self._opened(db)) as tx:
                await self._parts(db, tx, block.parts)
            if block.sends_late and block.kind == "producer":
                await self._refused("transaction_over", lambda: tx.send(PAID, b"0"))

    def _opened(self, db: Any) -> Any:
        world, block = self.world, self.block
        if block.kind == "producer":
            return world.producer.transaction(db)
        message = world.pick(block.picks) or delivery(new_id())
        self.attempt.consumes = message.message_id
        if block.kind == "chain":
            return world.consumer.transaction(db, message, producer=world.producer)
        return world.consumer.transaction(db, message)

    async def _parts(self, db: Any, tx: Any, parts: tuple[Part, ...]) -> None:
        for part in parts:
            match part:
                case Pay():
                    await self._pay(db, tx, part)
                case Savepoint():
                    await self._savepoint(db, tx, part)
                case Nest():
                    await self._nest(db, part)
                case Raise():
                    raise Planned
                case CommitByHand():
                    self._has_committed_by_hand = True
                    await self.world.hand.commit(db, is_statement=part.is_statement)

    async def _pay(self, db: Any, tx: Any, part: Pay) -> None:
        number = self.world.model.next_number()
        self.attempt.placed.add(number)
        if part.send == "first":
            self._send(tx, number)
        await self._place(db, number)
        if part.send == "last":
            self._send(tx, number)
        elif part.send == "awaited" and self.block.kind != "consumer":
            await tx.send_async(self._topic, b"%d" % number, key=str(number))
            self.attempt.told.add(number)
        self.attempt.kept.add(number)

    @property
    def _topic(self) -> str:
        return SHIPPED if self.block.kind == "chain" else PAID

    def _send(self, tx: Any, number: int) -> None:
        if self.block.kind != "consumer":
            tx.send(self._topic, b"%d" % number, key=str(number))
            self.attempt.told.add(number)

    async def _place(self, db: Any, number: int) -> None:
        await self.world.hand.execute(db, f"INSERT INTO orders (number) VALUES ({number})")

    async def _savepoint(self, db: Any, tx: Any, part: Savepoint) -> None:
        attempt, counts = self.attempt, self.world.counts
        self._savepoints += 1
        name = f"mine_{self._savepoints}"
        kept, told = set(attempt.kept), set(attempt.told)
        try:
            async with self.world.hand.savepoint(db, name, is_by_hand=part.is_by_hand):
                await self._parts(db, tx, part.parts)
                if part.end == "raise":
                    raise TakeBack  # noqa: TRY301 - as the user's code would
                if part.end == "clash":
                    await self._clash(db)
        except TakeBack:
            pass
        except Exception as error:
            if part.end != "clash" or type(error).__name__ not in CLASHES:
                raise
        else:
            counts["savepoints released"] += 1
            return
        attempt.kept, attempt.told = kept, told
        counts["savepoint rollbacks"] += 1
        counts["statements failed"] += part.end == "clash"

    async def _clash(self, db: Any) -> None:
        number = self.world.model.next_number()
        self.attempt.placed.add(number)
        await self._place(db, number)
        await self._place(db, number)
        raise Wrong("a number is there twice")

    async def _nest(self, db: Any, part: Nest) -> None:
        world = self.world
        inner = (
            world.consumer.transaction(db, delivery(new_id()))
            if part.is_consumers
            else world.producer.transaction(db)
        )

        async def nested() -> None:
            async with world.hand.entered(inner):
                pass

        await self._refused("block_already_open", nested)
        world.counts["nested blocks refused"] += 1

    async def _refused(self, expected: str, work: Callable[[], Any]) -> None:
        try:
            answer = work()
            if asyncio.iscoroutine(answer):
                await answer
        except EscrowError as error:
            if error.code != expected:
                raise
            self.world.counts["refusals"] += 1
            return
        raise Wrong(f"it was accepted, and not refused as {expected}")


class TakeBack(Exception):
    """Rolls back a savepoint."""


class CancelledAt:
    """Cancels its task when the work waits for the n-th time, wherever that is."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int) -> None:
        self._work = work
        self._at = at
        #: Suspensions left until the cancel; None while they are not counted.
        self._left: int | None = at
        self.has_come = False

    def count_later(self) -> None:
        """Do not count until ``count`` is called."""
        self._left = None

    def count(self) -> None:
        """Count from now on."""
        self._left = self._at

    async def run(self) -> None:
        """Run the work."""
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waited = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration:
                return
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self.has_come = True
                    asyncio.get_running_loop().call_soon(task.cancel)
            error = None
            try:
                yield waited
            except BaseException as thrown:  # noqa: BLE001 - the work must see it
                error = thrown
