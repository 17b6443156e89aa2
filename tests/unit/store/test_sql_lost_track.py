"""A database that lost a connection, an answer or its newest rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import Unavailable
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import StateBatch, StatePart, StatesLostTrack
from tests.unit.store.sql_stores import ask, filled, lose_connection
from tests.unit.store.state_stores import driver_of, follower_of, must_agree, step

if TYPE_CHECKING:
    from sqlalchemy import Connection


def test_after_a_new_connection_it_goes_on_where_it_was(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    lose_connection(driver)
    driver.commit(0)
    assert must_agree(driver) == [1, 2, 3, 4]
    lose_connection(driver)
    assert must_agree(driver) == [1, 2, 3, 4]
    assert follower_of(driver).disagreed == follower_of(driver).caught_up == 0


def lose_answer(states: SqlStates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connection end right after the next transaction that changes something."""
    change = states._change

    @contextmanager
    def cut(what: StateBatch | StatePart) -> Iterator[Connection]:
        monkeypatch.setattr(states, "_change", change)
        states._unanswered = what
        with states._database.transaction() as connection:
            yield connection
        states._database.close()
        raise Unavailable("state_store_away", "the answer was lost")

    monkeypatch.setattr(states, "_change", cut)


def test_a_batch_whose_answer_was_lost_is_not_applied_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path)
    follower = follower_of(driver)
    assert isinstance(follower.states, SqlStates)
    lose_answer(follower.states, monkeypatch)
    driver.commit(0)
    assert follower.state == "away"
    follower.follow_all()
    assert must_agree(driver) == [1, 2, 3, 4]
    assert follower.disagreed == 0


def test_only_the_batch_whose_answer_was_lost_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path)
    follower = follower_of(driver)
    assert isinstance(follower.states, SqlStates)
    lose_answer(follower.states, monkeypatch)
    driver.commit(0)
    # While it is away, so much is decided that everything is compared instead.
    monkeypatch.setattr("escrowmq.store.states.notes.NOTES_MAX", 1)
    store, driver.store.follower = driver.store, None
    driver.commit(1)
    driver.commit(2)
    step(follower)
    driver.hold("t5")
    while follower.ranges.bases:
        step(follower)
    driver.commit(3)
    driver.hold("t6")
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [4, 5, 6]
    assert follower.disagreed == 0


def test_a_failover_between_two_ranges_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_of("sql", tmp_path)
    follower = follower_of(driver)
    assert isinstance(follower.states, SqlStates)
    monkeypatch.setattr("escrowmq.store.sql.sql_states.PART_ROWS", 8)
    monkeypatch.setattr(follower.states, "part_rows", 8)
    for number in range(20):
        driver.hold(f"t{number}")
    ask(tmp_path, "DELETE FROM escrowmq_state_transactions")
    follower.verify()
    step(follower)
    ask(tmp_path, "CREATE TABLE old AS SELECT * FROM escrowmq_state_position")
    step(follower)
    assert len(ask(tmp_path, "SELECT 1 FROM escrowmq_state_transactions")) == 8
    # The database goes back to a time before the first range.
    lose_connection(driver)
    ask(tmp_path, "DELETE FROM escrowmq_state_transactions")
    ask(tmp_path, "DELETE FROM escrowmq_state_position")
    ask(tmp_path, "INSERT INTO escrowmq_state_position SELECT * FROM old")
    follower.follow_all()
    assert must_agree(driver) == [*range(20)]


def test_a_database_that_lost_batches_is_brought_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    driver.commit(0)
    lose_connection(driver)
    ask(tmp_path, "UPDATE escrowmq_state_position SET batches = batches - 2")
    ask(tmp_path, "DELETE FROM escrowmq_state_transactions WHERE half_offset > 2")
    driver.hold("new")
    assert must_agree(driver) == [1, 2, 3, 4, 5]
    assert "state_store_went_back" in caplog.text


def test_a_database_that_lost_everything_is_filled_again(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    ask(tmp_path, "DELETE FROM escrowmq_state_position")
    ask(tmp_path, "DELETE FROM escrowmq_state_transactions")
    driver.hold("new")
    assert must_agree(driver) == [0, 1, 2, 3, 4, 5]


def test_a_row_that_is_there_already_shows_that_it_lost_track(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    ask(
        tmp_path,
        "INSERT INTO escrowmq_state_transactions SELECT store_id, 5, epoch, 1, 1, 1, '', '', 0, 0,"
        " 1 FROM escrowmq_state_transactions WHERE half_offset = 4",
    )
    driver.hold("new")
    assert must_agree(driver) == [0, 1, 2, 3, 4, 5]


def test_a_scan_connects_again(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    states = lose_connection(driver)
    assert states.low_water() == 0
    assert len(states.snapshot(0, NEVER)) == 5


def test_results_from_before_it_lost_track_are_void(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    store = driver.store
    follower, store.follower = follower_of(driver), None
    driver.commit(0)
    work = follower.next_work()
    assert work is not None
    # A scan finds that the database went back, while the batch waits for its turn.
    follower.failed(StatesLostTrack())
    work.then(work.run())
    store.follower = follower
    follower.follow_all()
    assert must_agree(driver) == [1, 2, 3, 4]


def test_after_it_lost_track_it_looks_at_the_position_again(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    states = follower_of(driver).states
    assert isinstance(states, SqlStates)
    with pytest.raises(StatesLostTrack), states._database.transaction():
        raise StatesLostTrack
    assert not states._database.is_connected
