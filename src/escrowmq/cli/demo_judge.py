"""The half of ``escrowmq demo`` that survives: it compares what is there with what was said."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from escrowmq.cli.demo_writer import GROUP, HOST, key, parts
from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import StoreUnusable
from escrowmq.protocol.properties import index_facts
from escrowmq.protocol.stored_message import skim
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk import OsDisk
from escrowmq.store.lock import DirectoryLock
from escrowmq.store.reader import Reader
from escrowmq.store.recovery import Found, open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Decision, End
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import Resolution, State

_PULLED_MAX = 1_000
_PULLED_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What the child said before it died, by order."""

    held: set[int] = field(default_factory=set)
    #: Decisions that were sent; their replies may not have come.
    sent: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)

    @property
    def in_flight(self) -> set[int]:
        """Decisions under way when the process died: made or not, but never by half."""
        return self.sent - self.committed - self.rolled_back

    def state_of(self, order: int) -> State:
        """What an order must be that is not in flight."""
        if order in self.committed:
            return State.COMMITTED
        return State.ROLLED_BACK if order in self.rolled_back else State.PREPARED


@dataclass(slots=True, kw_only=True)
class Compared:
    """What was found."""

    #: Transactions by state: those that the child had told of, and those without a reply.
    told: Counter[State] = field(default_factory=Counter)
    in_flight: Counter[State] = field(default_factory=Counter)
    #: Messages that consumers can read, of the same two kinds.
    told_visible: int = 0
    in_flight_visible: int = 0
    #: Sentences about what must not be.
    broken: list[str] = field(default_factory=list)


def write_and_die(data: Path, orders: int) -> Acknowledged:
    """Run the child to its end, and take down what it acknowledges."""
    said = Acknowledged()
    sets = {
        "held": said.held,
        "sent": said.sent,
        Resolution.COMMIT: said.committed,
        Resolution.ROLLBACK: said.rolled_back,
    }
    words = [sys.executable, "-m", "escrowmq.cli.demo_writer", str(data), str(orders)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - ours
        assert child.stdout is not None
        for line in child.stdout:
            what, _, order = line.partition(" ")
            sets[what].add(int(order))
    if child.returncode != -signal.SIGKILL:
        raise StoreUnusable(
            "demo_failed", "the writing process ended before it was killed", path=str(data)
        )
    return said


@contextmanager
def reopened(data: Path) -> Iterator[tuple[Store, Found, float]]:
    """The store after the crash, what its recovery found, and how many seconds it took."""
    with DirectoryLock(data):
        started = time.perf_counter()
        store, found = open_store(OsDisk(data / "store"), StoreConfig(), CheckPolicy(), HOST)
        yield store, found, time.perf_counter() - started
        store.close()


def compare(store: Store, said: Acknowledged) -> Compared:
    """Hold the store against every word of the child."""
    compared = Compared()
    seen = visible_messages(store)
    reader = Reader(store)
    for order in sorted(said.held):
        half = reader.find_transaction(key(order))
        if half is None:
            compared.broken.append(f"{key(order)} was acknowledged and is lost")
            continue
        visible = seen.pop(key(order), 0)
        if visible != (parts(order) if half.state is State.COMMITTED else 0):
            compared.broken.append(
                f"{key(order)} is {half.state.label}: {visible} of its messages are visible"
            )
        if order in said.in_flight:
            compared.in_flight[half.state] += 1
            compared.in_flight_visible += visible
            continue
        compared.told[half.state] += 1
        compared.told_visible += visible
        wanted = said.state_of(order)
        if half.state is not wanted:
            compared.broken.append(f"{key(order)} is {half.state.label}, it was {wanted.label}")
    compared.broken += [f"{name} is visible and was never sent" for name in seen]
    return compared


def visible_messages(store: Store) -> Counter[str]:
    """How many messages consumers can read, by key."""
    reader = Reader(store)
    seen: Counter[str] = Counter()
    for queue in store.queues:
        offset = queue.start
        while offset < queue.end:
            pulled = reader.pull(
                queue.topic,
                queue.queue_id,
                offset,
                count_max=_PULLED_MAX,
                bytes_max=_PULLED_BYTES_MAX,
            )
            for message in pulled.messages:
                _, keys, _ = index_facts(skim(message)[5])
                seen.update(keys)
            offset = pulled.next_offset
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgain:
    """What is answered about an order that was committed before the crash."""

    name: str
    commit: Decision
    rollback: Decision


def ask_again(store: Store, said: Acknowledged) -> AskedAgain:
    """Send a decision again that was acknowledged before the crash, then the opposite one."""
    order = min(said.committed)
    half = Reader(store).find_transaction(key(order))
    assert half is not None
    now_ms = SystemClock().now_ms()
    commit, rollback = (
        store.execute(End(half_offset=half.half_offset, resolution=answer, by=GROUP), now_ms)
        for answer in (Resolution.COMMIT, Resolution.ROLLBACK)
    )
    store.sync()
    return AskedAgain(name=key(order), commit=commit, rollback=rollback)
