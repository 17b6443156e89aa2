"""A real process on real files, killed with SIGKILL again and again while clients write.

``kill_loop`` starts the victim and lets clients talk to it until it is killed. It compares what is
left with what the clients remember, and starts the victim again on the same directory. The seed
chooses what the clients do and when the victim dies: after a number of answers, or at a given
change of a file, in the middle of a write or of its own recovery. The machine decides how the
threads of two processes interleave, so a seed repeats the kind of a run, not its every step.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import EscrowError
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.store import Store
from escrowmq.transaction.policy import CheckPolicy
from tests.crash.judge import must_look_alike, picture
from tests.crash.kill_clients import QUEUES, Consumer, Link, Session
from tests.crash.kill_history import History
from tests.crash.kill_judge import Judge
from tests.crash.model import Wrong
from tests.crash.state_stores import judge_states, let_go
from tests.crash.victim import CONFIG, HOST, POLICY

CLIENTS = 3
SESSIONS = 6
_LIFE_SECONDS_MAX = 60


@dataclass(slots=True)
class Report:
    """Counts of one loop."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    transactions: int = 0
    visible: int = 0
    log_start: int = 0


@dataclass(frozen=True, slots=True)
class Fate:
    """When a life ends: after ``answers`` answers, or at change ``die_at`` of a file."""

    answers: int = 0
    die_at: int = 0
    part: float = 0.0

    @staticmethod
    def chosen(rng: Random) -> Fate:
        """Draw one: by answers, early in the recovery, or later."""
        kind = rng.random()
        if kind < 0.45:
            return Fate(answers=rng.randrange(1, 500))
        # The first changes are those of the recovery.
        die_at = rng.randrange(1, 30) if kind < 0.6 else rng.randrange(30, 400)
        return Fate(die_at=die_at, part=rng.random())


def kill_loop(
    seed: int, kills: int, directory: Path, *, plant: str = "", policy: CheckPolicy = POLICY
) -> Report:
    """Kill the victim `kills` times; raise ``Wrong`` if an answer was not true."""
    loop = KillLoop(seed, directory, plant, policy)
    for _ in range(kills):
        loop.live_and_die()
    return loop.report


class KillLoop:
    """Clients, their history, and one data directory for all lives of the victim."""

    def __init__(
        self, seed: int, directory: Path, plant: str = "", policy: CheckPolicy = POLICY
    ) -> None:
        self._rng = Random(seed)
        self._data = directory / "data"
        self._copy = directory / "copy"
        self._plant = plant
        # The victim has the rest of the settings, too.
        self._policy = replace(POLICY, state_store=policy.state_store, state_url=policy.state_url)
        self._clock = SystemClock()
        self._history = History(CONFIG.retention_ms, CONFIG.copy_after_ms)
        self._judge = Judge(self._history)
        self._clients = [
            [
                Session(f"{client}-{number}", self._history, Random(self._rng.random()))
                for number in range(SESSIONS)
            ]
            for client in range(CLIENTS)
        ]
        self._consumers = [Consumer(queue, self._history) for queue in QUEUES]
        self.report = Report()

    def live_and_die(self) -> None:
        """Run one life of the victim, and judge what it left."""
        fate = Fate.chosen(self._rng)
        with self._victim(fate) as (child, ends):
            try:
                asyncio.run(self._talk(child, ends, fate))
            except* Wrong as group:
                raise first_wrong(group) from None
        self.report.kills += 1
        self._judge_what_is_left()

    @contextmanager
    def _victim(self, fate: Fate) -> Iterator[tuple[subprocess.Popen[str], list[socket.socket]]]:
        pairs = [socket.socketpair() for _ in range(CLIENTS)]
        theirs = [str(end.fileno()) for _, end in pairs]
        words = [sys.executable, "-m", "tests.crash.victim", str(self._data), *theirs]
        words += ["--die-at", str(fate.die_at), "--part", str(fate.part), "--plant", self._plant]
        words += ["--state-store", self._policy.state_store]
        words += ["--state-url", self._policy.state_url]
        passed = [end.fileno() for _, end in pairs]
        errors = self._data.with_name("errors.txt")
        with (
            errors.open("w") as stderr,
            subprocess.Popen(words, stderr=stderr, text=True, pass_fds=passed) as child,
        ):
            for _, end in pairs:
                end.close()
            try:
                yield child, [end for end, _ in pairs]
            finally:
                child.kill()
                for end, _ in pairs:
                    end.close()
        if child.returncode != -signal.SIGKILL:
            raise Wrong(f"the process ended by itself: {errors.read_text()[-4_000:]}")

    async def _talk(
        self, child: subprocess.Popen[str], ends: list[socket.socket], fate: Fate
    ) -> None:
        """Let all clients work until the process is dead."""
        answers = 0

        def count() -> None:
            nonlocal answers
            answers += 1
            if answers == fate.answers:
                child.kill()

        async with asyncio.timeout(_LIFE_SECONDS_MAX), asyncio.TaskGroup() as group:
            for end, sessions, consumer in zip(ends, self._clients, self._consumers, strict=True):
                link = Link(count)
                await link.open(end)
                group.create_task(link.listen())
                group.create_task(consumer.work(link))
                for session in sessions:
                    group.create_task(session.work(link))

    def _judge_what_is_left(self) -> None:
        """Judge the data in place or as a copy; a second open of it changes nothing."""
        data = self._data
        is_copied = self._rng.random() < 0.5
        # A database that is shared refuses a copy while the original may still run.
        if is_copied and not self._policy.state_url:
            shutil.rmtree(self._copy, ignore_errors=True)
            data = Path(shutil.copytree(self._data, self._copy))
        try:
            with opened(data, self._policy) as store:
                self._judge.judge(store, self._clock.now_ms())
                found = picture(store)
                self.report.log_start = store.log_start
            with opened(data, self._policy) as store:
                must_look_alike(found, picture(store))
        except EscrowError as error:
            raise Wrong(f"what was left cannot be read: {error}") from error
        history = self._history
        self.report.acknowledged = history.acknowledged
        self.report.lost = history.lost
        self.report.transactions = len(history.transactions)
        self.report.visible = len(history.place_of)


@contextmanager
def opened(data: Path, policy: CheckPolicy) -> Iterator[Store]:
    """Open the store that a dead process left; close it without a checkpoint."""
    with DirectoryLock(data):
        store, _ = open_store(OsDisk(data / "store"), CONFIG, policy, HOST)
        try:
            judge_states(store)
            yield store
        finally:
            let_go(store)
            store.open_files.close()
            store.keys.close()
            store.log.close()


def first_wrong(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
