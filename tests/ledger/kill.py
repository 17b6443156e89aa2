"""Producers killed with SIGKILL at each step of a block, with a real broker and a real database.

    python -m tests.ledger.kill --lives 500 --seed 7

Afterwards all undecided transactions are checked, by a settler beside the broker or by the broker
itself, and a surviving producer answers from the ledger. A broker that has the ledger in its config
looks it up instead. Then consumers must see exactly the orders that are in the database.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from pathlib import Path
from random import Random

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.producer import Producer
from escrowmq.protocol.native.headers import ListQueuesHeader, ReadMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing.settler_process import BrokerPort, settle_once
from tests.ledger.conftest import postgres_server
from tests.ledger.kill_victim import POINTS
from tests.ledger.market import PAID
from tests.ledger.shops import GROUP, Shop, sqlite_shop

WAYS = ("session", "caller", "driver", "async")
READY = re.compile(r"ready name=(\S+) broker=(\S+) ")
#: Back-checks are due at once, and again soon.
POLICY = ("check_after_ms=0", "check_interval_ms=100", "checks_max=255")
SETTLED_WITHIN_S = 60
PAUSE_S = 0.02
_pause = threading.Event()


class Wrong(AssertionError):
    """Orders and messages do not agree."""


class Checks(Enum):
    """What checks undecided transactions."""

    SETTLER = "settler"
    #: The broker, which asks producers.
    BROKER = "broker"
    #: The broker, which looks the ledger up.
    LOOK_UPS = "look-ups"


@contextmanager
def broker(
    data: Path, checks: Checks = Checks.BROKER, ledger_url: str = ""
) -> Iterator[tuple[str, str]]:
    """Run a broker process; yield the addresses of its name server and of the broker."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", str(data)]
    command += ["--port", "0", "--name-port", "0", "--grpc-port", "-1"]
    checked_by = "pipeline" if checks is Checks.SETTLER else "broker"
    for setting in (*POLICY, f"checked_by={checked_by}"):
        command += ["--set", f"transaction.{setting}"]
    known = {"ESCROWMQ_LEDGER__SHOP__URL": ledger_url} if checks is Checks.LOOK_UPS else {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **known}
    ) as process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline())
            assert ready is not None
            yield ready[1], ready[2]
        finally:
            process.kill()


class Nursery:
    """The process that forks the victims."""

    def __init__(self, name_server: str, shop: Shop, victim: str) -> None:
        words = [sys.executable, "-m", victim, name_server, shop.kind, shop.url]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(self, way: str, point: str, number: int) -> None:
        """Run a life until it kills itself."""
        self._bear(way, point, number)
        assert self._line() == "dead", (way, point)

    def live_for(self, seconds: float, way: str, number: int) -> None:
        """Run a life, and kill it after this time."""
        victim = self._bear(way, "never", number)
        assert self._process.stdout is not None
        # The assertion below reports a victim that died by itself.
        select.select([self._process.stdout], [], [], seconds)
        os.kill(victim, signal.SIGKILL)
        assert self._line() == "dead", way

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _bear(self, way: str, point: str, number: int) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{way} {point} {number}\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass
class Scene:
    """A broker, a database, victims, and a surviving producer."""

    shop: Shop
    name_server: str
    broker_address: str
    nursery: Nursery
    survivor: Producer
    checks: Checks
    lives: Counter[str] = field(default_factory=Counter)

    def settle(self) -> None:
        """Check, or let the broker check, until nothing is undecided."""
        until_s = time.monotonic() + SETTLED_WITHIN_S
        with NativeCalls(self.broker_address) as calls:
            port = BrokerPort(calls)
            while port.undecided():
                if time.monotonic() > until_s:
                    raise Wrong(f"still undecided: {port.undecided()}")
                if self.checks is Checks.SETTLER:
                    settle_once(port)
                _pause.wait(PAUSE_S)

    def judge(self) -> None:
        """Raise unless exactly the orders in the database have a message, one each."""
        orders, heard = self.shop.orders(), Counter(self.heard())
        if set(heard) != orders or any(times != 1 for times in heard.values()):
            twice = [number for number, times in heard.items() if times > 1]
            raise Wrong(f"lost {orders - set(heard)}, wrong {set(heard) - orders}, twice {twice}")

    def heard(self, topic: str = PAID) -> list[int]:
        """Return the orders whose messages consumers can see."""
        with NativeCalls(self.broker_address) as calls:
            queues = list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))
            return [
                int(row.body)
                for queue in queues
                for row in calls.rows(
                    NativeCode.READ_MESSAGES,
                    ReadMessagesHeader(topic=topic, queue_id=queue.queue_id),
                )
            ]


@contextmanager
def scene(
    shop: Shop,
    folder: Path,
    victim: str = "tests.ledger.kill_victim",
    checks: Checks = Checks.SETTLER,
) -> Iterator[Scene]:
    """Set up a scene; ``victim`` is the module whose processes die."""
    with broker(folder / "broker", checks, shop.url) as (name_server, address):
        nursery = Nursery(name_server, shop, victim)
        try:
            with Producer(name_server, GROUP, ledger=shop.ledger()) as survivor:
                yield Scene(shop, name_server, address, nursery, survivor, checks)
        finally:
            nursery.close()


def is_in(point: str) -> bool:
    """Return whether an order is in the database if its seller dies at this point."""
    return POINTS.index(point) > POINTS.index("before-COMMIT")


def points_of(way: str) -> list[str]:
    """Return the points where a block of this kind can die.

    With `caller`, the test runs COMMIT, so those points are left out.
    """
    return [point for point in POINTS if way != "caller" or "COMMIT" not in point]


def kill_everywhere(there: Scene, ways: tuple[str, ...] = WAYS) -> None:
    """Die once at every point."""
    expected = set()
    lives = [(way, point) for way in ways for point in points_of(way)]
    for number, (way, point) in enumerate(lives, 1):
        there.nursery.live(way, point, number)
        if is_in(point):
            expected.add(number)
    there.settle()
    there.judge()
    assert there.shop.orders() == expected


def kill_anywhere(there: Scene, rng: Random, lives: int) -> None:
    """Kill lives at random times, from outside."""
    first = 1_000_000
    for life in range(lives):
        way = rng.choice(WAYS)
        there.nursery.live_for(rng.uniform(0.05, 0.6), way, first + 10_000 * life)
        there.lives[way] += 1
        if life % 10 == 9:
            there.settle()
            there.judge()
    there.settle()
    there.judge()


def main() -> None:
    """Kill many lives on each database."""
    parser = argparse.ArgumentParser(description="Kill producers; orders and messages must agree.")
    parser.add_argument("--lives", type=int, default=200, metavar="N", help="per database")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else Random().randrange(10**6)
    for kind, checks in product(("sqlite", "postgresql"), Checks):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="escrowmq-kill-")))
            if kind == "sqlite":
                shop = sqlite_shop(folder)
            else:
                shop = Shop(kind=kind, url=stack.enter_context(postgres_server()).get_uri())
                shop.set_up()
            there = stack.enter_context(scene(shop, folder, checks=checks))
            kill_everywhere(there)
            kill_anywhere(there, Random(seed), given.lives)
            facts = f"orders={len(shop.orders())} lives={dict(there.lives)} seed={seed}"
            sys.stdout.write(f"{kind}, {checks.value}: {facts}: they agree\n")
            shop.close()


if __name__ == "__main__":
    main()
