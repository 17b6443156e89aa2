"""The tables of a state store in a database: every row, and no row of another history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.sql.schema import NAME_CHARS_MAX, VIEW
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.transaction.commands import Park
from tests.unit.store.sql_stores import ask, claim, filled, states_in
from tests.unit.store.state_stores import driver_of, follower_of, must_agree

if TYPE_CHECKING:
    from sqlalchemy import Connection


def test_plain_sql_shows_every_undecided_transaction(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    driver.commit(1)
    driver.do(Park(half_offset=2, reason="person"))
    store_id = driver.store.core.lineage.store_id
    asked = "SELECT store_id, half_offset, state, producer_group, ledger, next_check_at_ms > 0"
    assert ask(tmp_path, f"{asked} FROM {VIEW} ORDER BY half_offset") == [
        (store_id, 0, "prepared", "pay", "", 1),
        (store_id, 2, "parked", "pay", "L1", None),
        (store_id, 3, "prepared", "pay", "L1", 1),
        (store_id, 4, "prepared", "pay", "L1", 1),
    ]


def test_two_stores_share_one_database(tmp_path: Path) -> None:
    one, other = filled(tmp_path, 5), filled(tmp_path, 3)
    one.commit(0)
    assert must_agree(one) == [1, 2, 3, 4]
    assert must_agree(other) == [0, 1, 2]
    assert len(ask(tmp_path, f"SELECT 1 FROM {VIEW}")) == 7


def test_rows_of_another_history_are_deleted(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    driver.store.close()
    ask(tmp_path, "UPDATE escrowmq_state_transactions SET epoch = 'other' WHERE half_offset = 3")
    ask(
        tmp_path,
        "INSERT INTO escrowmq_state_transactions SELECT store_id, 50000, epoch, 1, 1, 1, '', '', 0,"
        " 0, 1 FROM escrowmq_state_transactions WHERE half_offset = 4",
    )
    driver = driver.opened_again()
    assert must_agree(driver) == [0, 1, 2, 3, 4]
    assert follower_of(driver).disagreed == 2
    epochs = ask(tmp_path, "SELECT DISTINCT epoch FROM escrowmq_state_transactions")
    assert epochs == [(driver.store.core.lineage.epoch,)]


COLUMNS = ("log_offset", "size", "stored_at_ms", "state", "checks_sent", "next_check_at_ms")


@pytest.mark.parametrize("change", [*(f"{name} = 9" for name in COLUMNS), "ledger = 'x'"])
def test_every_column_is_compared(change: str, tmp_path: Path) -> None:
    driver = filled(tmp_path)
    asked = "SELECT * FROM escrowmq_state_transactions ORDER BY half_offset"
    wanted = ask(tmp_path, asked)
    ask(tmp_path, f"UPDATE escrowmq_state_transactions SET {change} WHERE half_offset = 1")
    ask(tmp_path, "UPDATE escrowmq_state_transactions SET producer_group = 'x' WHERE half_offset=2")
    follower = follower_of(driver)
    follower.verify()
    follower.follow_all()
    assert follower.disagreed == 2
    assert ask(tmp_path, asked) == wanted


@pytest.mark.parametrize(("found", "advice"), [(0, "store migrate --to sql"), (9, "a newer")])
def test_tables_of_another_version_are_refused(found: int, advice: str, tmp_path: Path) -> None:
    driver = filled(tmp_path)
    driver.store.close()
    ask(tmp_path, f"UPDATE escrowmq_state_version SET version = {found}")
    with pytest.raises(StoreUnusable, match=advice) as refused:
        driver.opened_again()
    assert refused.value.fields == {"version": found, "known": 1}
    states = states_in(tmp_path)
    for _ in range(2):
        # The second attempt uses the connection of the first.
        with pytest.raises(StoreUnusable, match=advice):
            states.open(claim("a"))
    states.close(None)


class Killed(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("is_committed", [False, True])
def test_tables_that_a_killed_start_left_are_completed(
    tmp_path: Path, *, is_committed: bool
) -> None:
    states = states_in(tmp_path)
    metadata = states._database.tables.metadata
    create_all = metadata.create_all

    def cut(connection: Connection) -> None:
        create_all(connection)
        if is_committed:
            # As the driver of SQLite did it for earlier releases.
            connection.connection.commit()
        raise Killed

    metadata.create_all = cut  # type: ignore[method-assign, assignment]
    with pytest.raises(Killed):
        states.open(claim("a"))
    states._database.close()
    tables = ask(tmp_path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert len(tables) == (3 if is_committed else 0)
    states = states_in(tmp_path)
    assert states.open(claim("a")) is None
    assert ask(tmp_path, "SELECT version FROM escrowmq_state_version") == [(1,)]
    assert ask(tmp_path, f"SELECT * FROM {VIEW}") == []
    states.close(None)


def test_the_time_is_the_databases() -> None:
    states = SqlStates("postgresql://host/database", "s1")
    assert "clock_timestamp()" in str(states._now())


def test_a_nul_in_a_name_of_an_older_log_is_shown(tmp_path: Path) -> None:
    driver = driver_of("sql", tmp_path)
    driver.hold("t0", group="pa\0y", ledger="L\0")
    driver.hold("t1", group="g" * (NAME_CHARS_MAX + 1))
    asked = "SELECT producer_group, ledger FROM escrowmq_undecided ORDER BY half_offset"
    assert ask(tmp_path, asked) == [("pa␀y", "L␀"), ("g" * NAME_CHARS_MAX, "")]
    driver = driver.restarted("crashed")
    assert must_agree(driver) == [0, 1]
    assert follower_of(driver).disagreed == 0
