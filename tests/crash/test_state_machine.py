"""Any commands in any order, with crashes and failing disks in between, against the model.

Hypothesis chooses the steps and shrinks a failure. This test has a fixed seed and a small budget;
``make crash`` uses fresh seeds and a large budget.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.recovery.recovery import open_store
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import (
    Survivors,
    everything_survives,
    nothing_survives,
    random_subset,
)
from escrowmq.transaction.policy import CheckPolicy
from tests.crash.driver import BORN, CONFIG, POLICY, Driver
from tests.crash.judge import judge, starts_of
from tests.crash.model import HOST
from tests.crash.random_day import STEPS

RANDOMS = st.integers(0, 2**32 - 1).map(Random)


class StoreMachine(RuleBasedStateMachine):
    """A store with all kinds of commands and failures."""

    policy = POLICY

    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver

    @initialize(durability=st.sampled_from(("fsync", "fsync", "os")))
    def open(self, durability: Any) -> None:  # noqa: ANN401 - one of two words
        """Begin with an empty store."""
        self.driver = Driver(FaultyDisk(BORN), replace(CONFIG, durability=durability), self.policy)

    @rule(act=st.sampled_from(list(STEPS)), rng=RANDOMS)
    def command(self, act: Any, rng: Random) -> None:  # noqa: ANN401 - a step of a random day
        """Run one command, or a few that belong together; they are answered later."""
        act(self.driver, rng)

    @rule(act=st.sampled_from(list(STEPS)), rng=RANDOMS)
    def answered_command(self, act: Any, rng: Random) -> None:  # noqa: ANN401 - as above
        """The same, answered at once."""
        act(self.driver, rng)
        self.driver.sync()

    @rule()
    def answer(self) -> None:
        """Run a group commit."""
        self.driver.sync()
        self.driver.judge()

    @rule(ms=st.sampled_from((1, 500, 4_000, 11_000, 25_000, 70_000, -1, -3_000, -20_000)))
    def clock_moves(self, ms: int) -> None:
        """Move the clock forward, or sometimes back."""
        self.driver.clock.jump(ms=ms)

    @rule()
    def retention(self) -> None:
        """Delete what is old."""
        self.driver.sync()
        self.driver.retain()
        self.driver.judge()

    @rule()
    def checkpoint(self) -> None:
        """Take a checkpoint."""
        self.driver.sync()
        self.driver.checkpoint()

    @rule()
    def restart(self) -> None:
        """Stop cleanly, and start again."""
        self.driver.sync()
        self.driver.close()
        self.driver.judge()

    @rule()
    def kill(self) -> None:
        """Kill the process; the power stays on."""
        self.driver.kill()
        self.driver.judge()

    @rule(
        survivors=st.one_of(
            st.just(nothing_survives), st.just(everything_survives), RANDOMS.map(random_subset)
        )
    )
    def power_cut(self, survivors: Survivors) -> None:
        """Cut the power; some of what was not flushed survives."""
        driver = self.driver
        if driver.config.durability == "os":
            # Answers that did not wait for the flush may be lost; the exploration judges those.
            driver.sync()
            driver.checkpoint()
        driver.disk = driver.disk.crash(survivors)
        driver.kill()
        driver.judge()

    @rule(
        kind=st.sampled_from((DiskCall.WRITE, DiskCall.FLUSH)),
        code=st.sampled_from((errno.ENOSPC, errno.EIO)),
        act=st.sampled_from(list(STEPS)),
        rng=RANDOMS,
    )
    def disk_fails(self, kind: DiskCall, code: int, act: Any, rng: Random) -> None:  # noqa: ANN401
        """Fail a write or a flush of the log: the store stops, and the next one recovers."""
        driver = self.driver
        driver.sync()
        driver.disk.fail_after(kind, 0, code, under="commitlog/", short_bytes=rng.randrange(60))
        try:
            act(driver, rng)
            driver.sync()
            # The step wrote nothing, so nothing failed.
            driver.disk.forgive()
        except OSError:
            driver.disk.forgive()
            if driver.config.durability == "fsync" and rng.random() < 0.5:
                driver.disk = driver.disk.crash(nothing_survives)
            # Without the crash, the next process reads pages that no flush will ever write.
            driver.kill()
        driver.judge()

    @rule(rng=RANDOMS, settled=st.booleans())
    def a_bit_flips(self, rng: Random, *, settled: bool) -> None:
        """Flip a bit on a copy: the store refuses to open, or serves exactly the right data."""
        driver = self.driver
        driver.sync()
        if settled:
            driver.checkpoint()
        copy = driver.disk.crash(everything_survives)
        files = {path: data for path, data in copy.snapshot().items() if data}
        path = rng.choice(sorted(files))
        copy.flip_bit(path, rng.randrange(len(files[path])), rng.randrange(8))
        try:
            store, _ = open_store(copy, driver.config, policy_of_copy(driver.policy), HOST)
            count = driver.history.count_in(store.recovered_at)
            # A bad last batch may be torn or damaged, which look alike, so it may be cut.
            assert count >= driver.confirmed
            judge(store, driver.history.worlds[count], [starts_of(driver.store)], rebuilt=True)
        except (StoreCorrupt, StoreUnusable) as refused:
            assert refused.fields, "it says where"  # noqa: PT017 - most flips are not refused


def policy_of_copy(policy: CheckPolicy) -> CheckPolicy:
    """Return settings for a copy of a store, which may not share the database of the original."""
    return replace(policy, state_store="table") if policy.state_store == "sql" else policy


def run(examples: int, steps: int, *, fixed: bool, policy: CheckPolicy = POLICY) -> None:
    """Let Hypothesis look for a counterexample."""
    machine = type("Machine", (StoreMachine,), {"policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=fixed,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_agrees_with_the_model_whatever_happens() -> None:
    run(examples=150, steps=40, fixed=True)
