"""A state store in a database has one claim per store id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.transaction.state_store import StatePosition, StatesLostTrack
from tests.unit.store.sql_stores import ask, claim, filled, of_start, states_in
from tests.unit.store.state_stores import follower_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row


def test_a_second_broker_with_the_same_store_id_is_refused(tmp_path: Path) -> None:
    first, second = states_in(tmp_path), states_in(tmp_path)
    first.open(claim("a", place="here"))
    with pytest.raises(StoreUnusable, match="another broker") as refused:
        second.open(claim("b", place="there"))
    assert refused.value.code == "state_store_claimed"
    assert refused.value.fields == {"store_id": "s1", "place": "here"}
    first.close(StatePosition("a", 1, 0))
    assert second.open(claim("b", place="there")) is None
    second.close(None)


def test_the_same_directory_takes_its_claim_back_at_once(tmp_path: Path) -> None:
    killed, again = states_in(tmp_path), states_in(tmp_path)
    killed.open(claim("a", place="here"))
    assert again.open(claim("a", "b", place="here")) == StatePosition("a", 0, 0)
    # The first one was not dead after all: it finds that its claim is gone.
    with pytest.raises((StoreUnusable, StatesLostTrack)):
        killed.close(StatePosition("a", 9, 0))
    again.close(None)


def test_a_claim_of_a_dead_broker_ends(tmp_path: Path) -> None:
    dead, other = states_in(tmp_path), states_in(tmp_path)
    dead.open(claim("a", place="here"))
    ask(tmp_path, "UPDATE escrowmq_state_position SET beat_at = beat_at - 60")
    assert other.open(claim("b", place="there")) is None
    for one in (dead, other):
        one.close(None)


def test_a_claim_that_a_failover_lost_is_taken_again(tmp_path: Path) -> None:
    states = states_in(tmp_path)
    states.open(claim("a", "b", place="here"))
    lose = states._database.close
    # The log lost its tail before start b, so the older position is beyond the fork.
    ask(tmp_path, of_start("a", 1_000, "here"))
    lose()
    with pytest.raises(StatesLostTrack):
        states.parts_held()
    assert states.open(claim("a", "b", place="here")) is None
    # The log lost even the record of that start: wait until its lease is over.
    ask(tmp_path, of_start("lost", 1_000, "here"))
    lose()
    with pytest.raises(StatesLostTrack):
        states.parts_held()
    for _ in range(2):
        with pytest.raises(Unavailable, match="another start"):
            states.open(claim("a", "b", place="here"))
    ask(tmp_path, "UPDATE escrowmq_state_position SET beat_at = beat_at - 60")
    assert states.open(claim("a", "b", place="here")) is None
    states.close(None)


def test_a_claim_whose_beat_moves_belongs_to_a_copy_that_runs(tmp_path: Path) -> None:
    states = states_in(tmp_path)
    states.open(claim("a", place="here"))
    ask(tmp_path, of_start("copy", 9, "here"))
    with pytest.raises(Unavailable, match="another start"):
        states.open(claim("a", place="here"))
    ask(tmp_path, "UPDATE escrowmq_state_position SET beat_at = beat_at + 1")
    with pytest.raises(StoreUnusable, match="another broker"):
        states.open(claim("a", place="here"))
    states.close(None)


def test_a_broker_whose_store_id_was_claimed_says_so(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    ask(tmp_path, "UPDATE escrowmq_state_position SET epoch = 'other', place = 'there'")
    driver.hold("new")
    follower = follower_of(driver)
    assert follower.state == "refused"
    assert follower.problem is not None
    assert follower.problem.code == "state_store_claimed"
    assert follower.next_work() is None
    with pytest.raises(StoreUnusable, match="another broker"):
        driver.opened_again()


def test_a_stop_after_another_broker_took_the_claim_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    ask(tmp_path, of_start("other", 9, "there"))
    follower_of(driver).close()
    assert "state_store_went_back" in caplog.text


def test_of_two_claims_at_the_same_moment_one_is_tried_again(tmp_path: Path) -> None:
    class Overtaken(SqlStates):
        """Another broker claims the store id right after this one has looked."""

        def _position(self, connection: Connection) -> Row[Any] | None:
            found = super()._position(connection)
            connection.exec_driver_sql("UPDATE escrowmq_state_position SET epoch = 'other'")
            return found

    states_in(tmp_path).open(claim("a"))
    states = Overtaken(f"sqlite:///{tmp_path / 'state.db'}", "s1")
    with pytest.raises(Unavailable, match="another broker claims"):
        states.open(claim("a"))
    states.close(None)
