"""A stopped broker's state moves to another state store, and every record is compared."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.model.errors import StoreCorrupt, Unavailable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.store.states.migrating import migrate_states
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.state_store import StatePart
from tests.unit.store.helpers import T0, Driver
from tests.unit.store.state_stores import follower_of, must_agree


def stopped(folder: Path, kind: str = "table", count: int = 20) -> Driver:
    """Return a driver whose store is open with the state table, after a broker of this kind."""
    policy = CheckPolicy(state_store=kind)  # type: ignore[arg-type]
    driver = Driver(OsDisk(folder / "store"), clock=ManualClock(T0), policy=policy)
    for number in range(count):
        driver.hold(f"t{number}")
    for row in range(0, count, 3):
        driver.commit(row)
    driver.policy = CheckPolicy()
    return driver.closed_and_opened()


@pytest.mark.parametrize("to", ["mapped", "sql"])
@pytest.mark.parametrize("before", ["table", "mapped", "sql"])
def test_the_next_start_finds_every_record(before: str, to: str, tmp_path: Path) -> None:
    driver = stopped(tmp_path, before)
    told: list[tuple[int, int]] = []
    done = migrate_states(driver.store, to, lambda at, of: told.append((at, of)))  # type: ignore[arg-type]
    assert done.undecided == 13
    assert told == [(at, 2 * done.parts) for at in range(1, 2 * done.parts + 1)]
    names = driver.disk.list("")
    assert ("state.db" in names) == (to == "sql")
    assert bool(driver.disk.list("mapped")) == (to == "mapped")
    driver.policy = replace(driver.policy, state_store=to)  # type: ignore[arg-type]
    driver = driver.closed_and_opened()
    assert len(must_agree(driver)) == 13
    assert follower_of(driver).disagreed == follower_of(driver).caught_up == 0
    driver.store.close()


def test_the_table_needs_no_copy(tmp_path: Path) -> None:
    driver = stopped(tmp_path, "mapped")
    done = migrate_states(driver.store, "table", lambda *_: None)
    assert (done.parts, done.undecided) == (0, 13)
    assert driver.disk.list("mapped") == []
    driver.store.close()


def test_tables_of_an_older_version_are_made_again(tmp_path: Path) -> None:
    driver = stopped(tmp_path, "sql")
    with closing(sqlite3.connect(tmp_path / "store" / "state.db")) as database:
        database.execute("UPDATE escrowmq_state_version SET version = 0")
        database.commit()
    assert migrate_states(driver.store, "sql", lambda *_: None).undecided == 13
    driver.store.close()


def test_a_record_that_is_not_what_was_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(SqlStates):
        """Keeps nothing."""

        def replace(self, part: StatePart) -> int:
            assert part.rows is not None
            return 0

    driver = stopped(tmp_path)
    monkeypatch.setattr("escrowmq.store.sql.sql_states.SqlStates", Forgetful)
    with pytest.raises(StoreCorrupt, match="migration_differs"):
        migrate_states(driver.store, "sql", lambda *_: None)
    driver.store.close()


def test_a_broker_that_claims_the_store_id_meanwhile_is_said(tmp_path: Path) -> None:
    driver = stopped(tmp_path)

    def claim(done: int, _: int) -> None:
        if done == 1:
            with closing(sqlite3.connect(tmp_path / "store" / "state.db")) as database:
                database.execute("UPDATE escrowmq_state_position SET epoch = 'other'")
                database.commit()

    with pytest.raises(Unavailable, match="migration_disturbed"):
        migrate_states(driver.store, "sql", claim)
    driver.store.close()
