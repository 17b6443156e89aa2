"""The state store in PostgreSQL: killed in the middle of work, gone back in time, claimed twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from escrowmq.broker.write import following
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.commands import Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.state_store import WantedStates
from tests.crash.driver import BORN, POLICY, Driver
from tests.crash.state_stores import judge_states, let_go
from tests.ledger.conftest import postgres_server
from tests.unit.broker.wire import eventually
from tests.unit.store.helpers import message


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def policy(server: Any) -> CheckPolicy:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return replace(POLICY, state_store="sql", state_url=server.get_uri())


def driver_on(policy: CheckPolicy) -> Driver:
    return Driver(FaultyDisk(BORN), policy=policy)


def kill(server: Any) -> None:
    """End the server's processes at once, as a power cut of its machine would."""
    pid = server.get_pid()
    os.kill(pid, signal.SIGQUIT)
    while Path(f"/proc/{pid}").exists():
        os.sched_yield()


def state_of(driver: Driver) -> str:
    assert driver.store.follower is not None
    return driver.store.follower.state


def test_a_server_killed_in_the_middle_is_caught_up(server: Any, policy: CheckPolicy) -> None:
    driver = driver_on(policy)
    rows = [driver.prepare(driver.message()) for _ in range(10)]
    driver.sync()
    driver.judge()
    kill(server)
    driver.commit(rows[0])
    driver.prepare(driver.message())
    driver.sync()
    assert state_of(driver) == "away"
    server.start()
    driver.judge()
    kill(server)
    for row in rows[1:6]:
        driver.commit(row)
    driver.prepare(driver.message(), driver.message())
    # Restarts without the server, too: the log has everything.
    driver.sync()
    driver.kill()
    assert state_of(driver) == "away"
    server.start()
    driver.judge()
    driver.close()
    driver.judge()
    let_go(driver.store)


def test_a_failover_that_lost_its_tail_is_corrected(server: Any, policy: CheckPolicy) -> None:
    driver = driver_on(policy)
    rows = [driver.prepare(driver.message()) for _ in range(5)]
    driver.sync()
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT * FROM escrowmq_state_transactions")
        connection.execute("CREATE TABLE place AS SELECT * FROM escrowmq_state_position")
        driver.commit(rows[0])
        driver.sync()
        driver.commit(rows[1])
        driver.prepare(driver.message())
        driver.sync()
        # The database goes back, as a replica that had not received everything.
        for table, copy in (("transactions", "kept"), ("position", "place")):
            connection.execute(f"DELETE FROM escrowmq_state_{table}")
            connection.execute(f"INSERT INTO escrowmq_state_{table} SELECT * FROM {copy}")
    assert driver.store.follower is not None
    driver.store.follower.states._database.close()  # type: ignore[attr-defined]
    driver.prepare(driver.message())
    driver.sync()
    judge_states(driver.store)
    let_go(driver.store)


def prepare(name: str) -> Prepare:
    return Prepare(group="pay", transaction_id=name, messages=(message(name, unique_key=name),))


def backend_of(driver: Driver) -> int:
    """The process of the server that serves the broker."""
    assert driver.store.follower is not None
    found: int = driver.store.follower.states._database._raw.info.backend_pid  # type: ignore[attr-defined]
    return found


async def test_a_silent_server_is_away_and_holds_up_no_stop(
    policy: CheckPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT_S", 0.05)
    monkeypatch.setattr(following, "CLOSE_S", 0.05)
    driver = driver_on(policy)
    writer = Writer(driver.store, SystemClock())
    follower = driver.store.follower
    assert follower is not None
    await writer.submit(prepare("a"))
    await eventually(lambda: follower.is_equal and not follower.lag_rows)
    backend = backend_of(driver)
    os.kill(backend, signal.SIGSTOP)
    try:
        await writer.submit(prepare("b"))
        await eventually(lambda: follower.state == "away")
        with pytest.raises(Unavailable, match="not answered"):
            await writer.submit(prepare("c"))
        os.kill(backend, signal.SIGCONT)
        await eventually(lambda: follower.state == "follows")
        os.kill(backend, signal.SIGSTOP)
        await writer.submit(prepare("d"))
        async with asyncio.timeout(20):
            await writer.close()
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_nul_in_a_group_of_an_older_log_stops_nothing(server: Any, policy: CheckPolicy) -> None:
    driver = driver_on(policy)
    message = driver.message()
    driver.store.execute(
        Prepare(group="pa\0y", transaction_id="t", messages=(message,)), driver.clock.now_ms()
    )
    driver.sync()
    assert state_of(driver) == "follows"
    with psycopg.connect(server.get_uri()) as connection:
        asked = "SELECT producer_group FROM escrowmq_undecided"
        assert connection.execute(asked).fetchall() == [("pa␀y",)]
    judge_states(driver.store)
    let_go(driver.store)


def test_a_lost_right_is_told_from_a_server_that_is_away(server: Any, policy: CheckPolicy) -> None:
    driver = driver_on(policy)
    driver.prepare(driver.message())
    driver.sync()
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER TABLE escrowmq_state_transactions RENAME TO hidden")
        driver.prepare(driver.message())
        driver.sync()
        assert driver.store.follower is not None
        problem = driver.store.follower.problem
        assert problem is not None
        assert problem.code == "state_store_rejected"
        connection.execute("ALTER TABLE hidden RENAME TO escrowmq_state_transactions")
    driver.store.follower.follow_all()
    judge_states(driver.store)
    let_go(driver.store)


def test_the_view_and_the_scan_agree(server: Any, policy: CheckPolicy) -> None:
    driver = driver_on(policy)
    rows = [driver.prepare(driver.message()) for _ in range(5)]
    driver.sync()
    driver.commit(rows[3])
    driver.sync()
    assert driver.store.follower is not None
    due = WantedStates(limit=10, check_at_ms=2**60)
    found = driver.store.follower.states.scan(due).half_offsets.tolist()
    with psycopg.connect(server.get_uri()) as connection:
        asked = "SELECT half_offset FROM escrowmq_undecided ORDER BY half_offset"
        assert [row for (row,) in connection.execute(asked)] == found == [0, 1, 2, 4]
    let_go(driver.store)


def test_a_copy_of_a_running_broker_is_refused(server: Any, policy: CheckPolicy) -> None:
    assert server.get_pid() is not None
    driver = driver_on(policy)
    driver.prepare(driver.message())
    driver.sync()
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("UPDATE escrowmq_state_position SET epoch = 'of the original'")
    with pytest.raises(StoreUnusable, match="another broker"):
        Driver(driver.disk, policy=policy)
    let_go(driver.store)
