"""How a state store reaches its database, and when it cannot."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused, StoreUnusable, Unavailable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.sql.database import StateDatabase, _with_driver
from escrowmq.store.sql.sql_states import SqlStates
from escrowmq.store.states.choosing import place_of, url_in
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.store.helpers import T0, Driver
from tests.unit.store.sql_stores import ask, filled, states_in
from tests.unit.store.state_stores import driver_of, follower_of, must_agree


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


def test_an_ended_connection_refuses_a_transaction(tmp_path: Path) -> None:
    database = StateDatabase(f"sqlite:///{tmp_path / 'state.db'}")
    with pytest.raises(Unavailable, match="the connection ended"), database.transaction():
        pass
    database.close()


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
