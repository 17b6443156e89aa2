"""State stores of every kind on a small store, and a comparison of each with the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from escrowmq.store.disk.disk import Disk
from escrowmq.store.states.follower import Follower
from escrowmq.store.states.state_rows import rows_between
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import held_from
from tests.unit.store.helpers import Driver

KINDS = ("mapped", "sql")


def policy_of(kind: str, folder: Path, **changes: Any) -> CheckPolicy:  # noqa: ANN401
    """Return settings that choose this state store; a database is in the folder."""
    url = f"sqlite:///{folder / 'state.db'}" if kind == "sql" else ""
    return CheckPolicy(state_store=kind, state_url=url, **changes)  # type: ignore[arg-type]


def driver_of(kind: str, folder: Path, disk: Disk | None = None, **config: int) -> Driver:
    """Return a small store with this state store."""
    return Driver(
        disk, clock=ManualClock(1_700_000_000_000), policy=policy_of(kind, folder), **config
    )


def follower_of(driver: Driver) -> Follower:
    """The follower, which must be there."""
    assert driver.store.follower is not None
    return driver.store.follower


def must_agree(driver: Driver) -> list[int]:
    """Compare the state store with the core; return the undecided heads."""
    follower, store = follower_of(driver), driver.store
    assert follower.problem is None, follower.problem
    assert (follower.lag_rows, follower.state) == (0, "follows")
    wanted = held_from(rows_between(store, 0, store.table.end))
    held = follower.states.snapshot(0, NEVER)
    assert held.tolist() == wanted.tolist()
    rows: list[int] = wanted["half_offset"].tolist()
    assert follower.states.low_water() == min(rows, default=store.table.end)
    return rows


def step(follower: Follower) -> None:
    """Do one piece of work."""
    work = follower.next_work()
    assert work is not None
    work.then(work.run())
