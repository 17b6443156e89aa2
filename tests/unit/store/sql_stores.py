"""State stores in a SQLite file, and SQL that looks into it or changes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from escrowmq.model.lineage import Epoch, new_lineage
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.transaction.state_store import StateClaim
from tests.unit.store.helpers import Driver
from tests.unit.store.state_stores import driver_of, follower_of


def ask(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "state.db")) as database:
        rows = database.execute(sql).fetchall()
        database.commit()
    return rows


def filled(folder: Path, count: int = 5) -> Driver:
    driver = driver_of("sql", folder)
    for number in range(count):
        driver.hold(f"t{number}", ledger="L1" if number else "")
    return driver


def claim(*epochs: str, place: str = "") -> StateClaim:
    lineage = new_lineage("s1")
    for at, epoch in enumerate(epochs, 1):
        lineage = lineage.with_epoch(Epoch(epoch, at, 0))
    return StateClaim(lineage, place)


def states_in(folder: Path) -> SqlStates:
    return SqlStates(f"sqlite:///{folder / 'state.db'}", "s1")


def of_start(epoch: str, log_offset: int, place: str) -> str:
    """Return what makes another start have the position."""
    return (
        f"UPDATE escrowmq_state_position SET epoch = '{epoch}', log_offset = {log_offset},"
        f" place = '{place}'"
    )


def lose_connection(driver: Driver) -> SqlStates:
    states = follower_of(driver).states
    assert isinstance(states, SqlStates)
    states._database.close()
    return states
