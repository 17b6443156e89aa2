"""The state store in a database: one claim per store, and no row of another history."""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.model.errors import RequestRefused, StoreUnusable, Unavailable
from escrowmq.model.lineage import Epoch, new_lineage
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.sql.database import StateDatabase, _with_driver
from escrowmq.store.sql.schema import NAME_CHARS_MAX, VIEW
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.store.states.choosing import place_of, url_in
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.commands import Park
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import (
    StateBatch,
    StateClaim,
    StatePart,
    StatePosition,
    StatesLostTrack,
)
from tests.unit.store.helpers import T0, Driver
from tests.unit.store.state_stores import driver_of, follower_of, must_agree, step

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row


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


def of_start(epoch: str, log_offset: int, place: str) -> str:
    """Return what makes another start have the position."""
    return (
        f"UPDATE escrowmq_state_position SET epoch = '{epoch}', log_offset = {log_offset},"
        f" place = '{place}'"
    )


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


def lose_connection(driver: Driver) -> SqlStates:
    states = follower_of(driver).states
    assert isinstance(states, SqlStates)
    states._database.close()
    return states


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


def test_a_database_that_is_away_at_start_is_filled_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    driver = filled(tmp_path)
    follower = follower_of(driver)
    assert follower.state == "away"
    assert isinstance(follower.problem, Unavailable)
    assert follower.problem.code == "state_store_away"
    assert follower.log_offset == 0
    (tmp_path / "state.db").rmdir()
    follower.follow_all()
    assert must_agree(driver) == [0, 1, 2, 3, 4]


def test_a_stop_while_the_database_is_away_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    ask(tmp_path, "DROP VIEW escrowmq_undecided")
    ask(tmp_path, "ALTER TABLE escrowmq_state_position RENAME TO gone")
    follower_of(driver).close()
    assert "state_store_away" in caplog.text


def test_a_stop_after_another_broker_took_the_claim_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    ask(tmp_path, of_start("other", 9, "there"))
    follower_of(driver).close()
    assert "state_store_went_back" in caplog.text


def test_without_sqlalchemy_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(StoreUnusable, match=r"escrowmq\[sql\]"):
        states_in(tmp_path)


def test_without_a_driver_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnusable, match="sql_driver_missing"):
        StateDatabase("postgresql://host/database")


def test_a_malformed_url_is_refused_without_its_text() -> None:
    with pytest.raises(RequestRefused, match="must be a URL") as refused:
        StateDatabase("secret")
    assert "secret" not in str(refused.value)


def test_postgresql_gets_a_driver_and_limits() -> None:
    import sqlalchemy as sa

    url, arguments = _with_driver(sa.make_url("postgresql://user@host/database"))
    assert url.drivername == "postgresql+psycopg"
    assert arguments["connect_timeout"] == 5
    assert arguments["tcp_user_timeout"] == 10_000
    assert arguments["options"] == "-c statement_timeout=60000"
    _, arguments = _with_driver(url.set(query={"connect_timeout": "1"}))
    assert "connect_timeout" not in arguments
    other = sa.make_url("postgresql+asyncpg://host/database")
    assert _with_driver(other) == (other, {})


def test_an_ended_connection_refuses_a_transaction(tmp_path: Path) -> None:
    database = StateDatabase(f"sqlite:///{tmp_path / 'state.db'}")
    with pytest.raises(Unavailable, match="the connection ended"), database.transaction():
        pass
    database.close()


def test_no_url_means_sqlite_in_the_stores_directory(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "store")
    driver = Driver(disk, clock=ManualClock(T0), policy=CheckPolicy(state_store="sql"))
    driver.hold("t0")
    assert must_agree(driver) == [0]
    driver.store.close()
    assert (tmp_path / "store" / "state.db").is_file()
    driver = driver.opened_again()
    assert must_agree(driver) == [0]
    driver.store.close()
    assert place_of(disk) == place_of(OsDisk(tmp_path / "store"))
    assert place_of(disk) != place_of(OsDisk(tmp_path))
    assert place_of(FaultyDisk()) == ""
    with pytest.raises(StoreUnusable, match="state_url"):
        url_in(FaultyDisk())


def test_a_scan_connects_again(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    states = lose_connection(driver)
    assert states.low_water() == 0
    assert len(states.snapshot(0, NEVER)) == 5


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


@pytest.mark.parametrize("kind", ["DataError", "ProgrammingError"])
def test_a_rejected_statement_is_told_from_a_database_that_is_away(
    kind: str, tmp_path: Path
) -> None:
    import sqlalchemy as sa

    database = StateDatabase(f"sqlite:///{tmp_path / 'state.db'}")
    database.connect()
    rejected = getattr(sa.exc, kind)("INSERT", None, ValueError("permission denied"))
    with pytest.raises(Unavailable, match="permission denied") as refused, database.transaction():
        raise rejected
    assert refused.value.code == "state_store_rejected"
    assert not database.is_connected


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def never_answer(states: SqlStates) -> list[int]:
    with states._database.transaction() as connection:
        connection.exec_driver_sql(ENDLESS)
    raise AssertionError("it answered")


def test_a_call_that_never_ends_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path)
    follower = follower_of(driver)
    states = follower.states
    assert isinstance(states, SqlStates)
    with monkeypatch.context() as silent:
        silent.setattr(states, "parts_held", lambda: never_answer(states))
        follower.wait_s = 0.05
        follower.verify()
        follower.follow_all()
        assert follower.state == "away"
        assert "interrupted" in str(follower.problem)
    follower.follow_all()
    assert must_agree(driver) == [0, 1, 2, 3, 4]


def test_an_interruption_ends_the_socket_of_a_server(tmp_path: Path) -> None:
    database = StateDatabase("postgresql://host/database")
    database.interrupt()
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(10)
        database._raw = here
        database.interrupt()
        assert there.recv(1) == b""
    # Mapped files wait for no network.
    follower_of(driver_of("mapped", tmp_path)).interrupt()


def test_a_state_store_whose_thread_is_stuck_is_left_alone(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    follower = follower_of(driver)
    follower.is_led = True
    follower.close()
    follower.give_back()
    assert follower.states._database.is_connected  # type: ignore[attr-defined]
    follower.is_led = False
    follower.close()
    assert not follower.states._database.is_connected  # type: ignore[attr-defined]


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
