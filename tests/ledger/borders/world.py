"""The shop and the broker of a program, and what operators do to them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from escrowmq import AsyncProducer, Producer
from escrowmq.cli.main import main
from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction
from escrowmq.client.network.background import background
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.states import State
from tests.ledger.borders.hands import Driver, Hand, done
from tests.ledger.borders.model import Attempt, Found, Model, Snapshot, Wrong
from tests.ledger.borders.reader import Reader
from tests.ledger.deliveries import consumed
from tests.ledger.shops import GROUP, Shop, new_id

PAID = "order-paid"
SHIPPED = "order-shipped"
HOUR_S = 3_600
ROUNDS_MAX = 4
TIMEOUT_S = 3.0

Audit = Callable[["World", Found], None]


class World:
    """The shop, the broker and the clients of one program."""

    topics = (PAID, SHIPPED)

    def __init__(self, driver: Driver, shop: Shop, folder: Path, counts: Counter[str]) -> None:
        self.driver = driver
        self.shop = shop
        self.hand = Hand(driver, shop)
        self.model = Model()
        self.reader = Reader(self.topics)
        self.counts = counts
        self.snapshots: list[Snapshot] = []
        #: The block that runs now, to which held half messages belong.
        self.attempt: Attempt | None = None
        #: Hooks between the half messages and COMMIT, and between COMMIT and the decision.
        self.after_hold: Callable[[], Awaitable[None]] | None = None
        self.before_decision: Callable[[], Awaitable[None]] | None = None
        #: Called when half messages are held.
        self.on_held: Callable[[], None] | None = None
        self._folder = folder
        self._copies = 0
        self.broker = InProcessBroker(data=folder / "data-0", ledgers=[shop.ledger()])
        self.producer: Any = None
        self.consumer: Any = None

    async def open(self) -> None:
        """Start the broker and its clients."""
        self.broker.start()
        for topic in self.topics:
            self.broker.create_topic(topic)
        made = AsyncProducer if self.driver.is_async else Producer
        self.producer = made(
            self.broker.address, GROUP, ledger=self.shop.ledger(), timeout_s=TIMEOUT_S
        )
        self.consumer = (AsyncConsumer if self.driver.is_async else Consumer)(
            self.broker.address, group="shipping"
        )
        self._watch(self.producer._core)

    def _watch(self, core: Any) -> None:
        start = core.started

        async def started() -> Any:
            producing = await start()
            if "hold" not in vars(producing):
                self._watch_started(producing)
            return producing

        core.started = started

    def _watch_started(self, producing: Any) -> None:
        hold, decide = producing.hold, producing.decide

        async def held(transaction_id: str, *rest: Any, **named: Any) -> HeldTransaction:
            if self.attempt is not None:
                # Record it before the answer: the broker may hold it even if the task is cancelled.
                self.attempt.transaction_id = transaction_id
                self.model.history.append(self.attempt)
            found: HeldTransaction = await hold(transaction_id, *rest, **named)
            if self.on_held is not None:
                self.on_held()
            await self._once("after_hold")
            return found

        async def decided(one: HeldTransaction, resolution: Resolution) -> FinalDecision:
            if resolution is Resolution.COMMIT:
                await self._once("before_decision")
            found: FinalDecision = await decide(one, resolution)
            return found

        producing.hold, producing.decide = held, decided

    async def _once(self, when: str) -> None:
        happens = getattr(self, when)
        setattr(self, when, None)
        if happens is not None:
            await happens()

    async def close(self) -> None:
        """Close everything."""
        try:
            await self.hand.close()
            if self.producer is not None:
                await done(self.producer.close())
        finally:
            self.broker.close()

    # Actions of operators.

    async def lose(self) -> None:
        """Lose the decision on the way to the broker."""
        self.counts["decisions lost"] += 1
        raise Unavailable("broker_unreachable", "a test took the decision away")

    async def backup(self, chooses: float) -> None:
        """Copy the directory, or use our tools."""
        self._copies += 1
        path = self._folder / f"backup-{self._copies}"
        if chooses < 0.7:
            self.counts["backups by copy"] += 1
            shutil.copytree(str(self.broker._data), path)
            (path / "lock").unlink(missing_ok=True)
        else:
            self.counts["backups by our tool"] += 1
            taken = path.with_suffix(".taken")
            call("backup", str(taken), "--broker", self.broker.broker_address)
            call("restore", str(taken), "--data-dir", str(path))
        self.snapshots.append(self.model.snapshot(str(path)))

    async def restore(self, chooses: float) -> None:
        """Continue the broker from one of the backups, at its old address."""
        if not self.snapshots:
            return
        snapshot = self.snapshots[int(chooses * len(self.snapshots))]
        if self._copies % 2:
            # In practice, a reader has usually reached the end by then.
            self.read()
        self._copies += 1
        path = self._folder / f"data-{self._copies}"
        shutil.copytree(snapshot.path, path)
        self.broker.stop()
        self.broker._data = path
        self.broker.start()
        self.reader.restored(self.broker)
        self.model.restore(snapshot)
        self.counts["restores"] += 1
        self.counts["interruptions"] += 1

    async def restart(self) -> None:
        """Stop the broker and start it again."""
        self.broker.restart()
        self.counts["restarts"] += 1
        self.counts["interruptions"] += 1

    def read(self) -> None:
        """Let the reader continue."""
        self.counts["reads"] += 1
        self.counts["positions moved to a fork"] += self.reader.read(self.broker)

    async def sweep(self) -> None:
        """Run the janitor, which refuses while the broker is not sure."""
        self.model.sweeps += 1
        self.counts["sweeps"] += 1
        with suppress(Unavailable):
            deleted = await done(self.producer.clean_ledger())
            self.counts["rows swept"] += deleted

    async def sweep_inside(self) -> None:
        """Do the same from within the producer's own event loop."""
        self.model.sweeps += 1
        self.counts["sweeps"] += 1
        with suppress(Unavailable):
            self.counts["rows swept"] += await self.producer._core.clean_ledger()

    def settle(self) -> None:
        """Let an hour pass, and run a round of checks."""
        self.broker.advance(seconds=HOUR_S)
        done_now = self.broker.run_checks()
        self.counts["settle rounds"] += 1
        self.counts["settled by checks"] += len(done_now.committed) + len(done_now.rolled_back)

    async def orphan(self) -> None:
        """Hold a half message whose sender dies."""
        attempt = self.attempt = Attempt()
        self.model.attempts.append(attempt)
        number = self.model.next_number()
        attempt.placed.add(number)
        message = Message(topic=PAID, body=b"%d" % number)
        ledger_uuid = self.shop.ledger().uuid()

        async def hold() -> None:
            producing = await self.producer._core.started()
            await producing.hold(new_id(), [message], ledger=ledger_uuid)

        try:
            await hold() if self.driver.is_async else background().run(hold())
        finally:
            self.attempt = None
        self.counts["orphans"] += 1

    def pick(self, picks: float) -> Received | None:
        """Return one of the messages that consumers can see."""
        seen = self.broker.messages(PAID)
        return seen[int(picks * len(seen))] if seen else None

    # Reading the result.

    async def end(self, audit: Audit | None = None) -> None:
        """Settle everything, sweep, and compare everything with the model."""
        for _ in range(ROUNDS_MAX):
            self.settle()
            if not self.broker.undecided():
                break
        for _ in range(ROUNDS_MAX):
            try:
                await done(self.producer.clean_ledger())
                break
            except Unavailable:
                continue
        else:
            raise Wrong("the janitor never finishes")
        found = self.found()
        self.model.judge(found)
        self.read()
        if audit is not None:
            audit(self, found)

    def found(self) -> Found:
        """Read the state of the database and the broker."""
        server = self.broker._running
        core = server.broker.store.core
        states: dict[State, set[str]] = {State.PARKED: set(), State.PREPARED: set()}
        for half in filter(None, map(core.half, range(core.table.end))):
            if half.state in states and half.first == half.half_offset:
                states[half.state].add(core.table.identity(half)[0])
        self.counts["parked"] += len(states[State.PARKED])
        messages = [one for topic in self.topics for one in self.broker.messages(topic)]
        unfinished = self.shop.run(
            "SELECT message_id FROM escrowmq_consumed WHERE consumed_at_ms <= 0"
        )
        return Found(
            orders=self.shop.orders(),
            messages=[int(one.body) for one in messages],
            parked=states[State.PARKED],
            undecided=states[State.PREPARED],
            ledger=self.shop.outcomes(),
            consumed=consumed(self.shop),
            unfinished={row[0] for row in unfinished},
        )


def call(*words: str) -> None:
    """Run one of our commands."""
    said = StringIO()
    with redirect_stdout(said):
        try:
            main(list(words))
        except SystemExit as left:
            if left.code:
                raise Wrong(f"{words} ended with {left.code}: {said.getvalue()}") from None


def code_of(error: BaseException) -> str:
    """Return the code of one of our errors, or an empty string for others."""
    return error.code if isinstance(error, EscrowError) else ""
