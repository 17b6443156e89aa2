"""The state store in PostgreSQL: killed in the middle of work, gone back in time, claimed twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from escrowmq.broker.write import following
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import ClockReading, SystemClock
from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import start_store
from escrowmq.store.store import Store
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.commands import Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.state_store import WantedStates
from tests.crash.driver import BORN, CONFIG, POLICY, Driver
from tests.crash.model import HOST
from tests.crash.state_stores import judge_states, let_go
from tests.ledger.conftest import postgres_server
from tests.unit.broker.wire import eventually
from tests.unit.store.helpers import T0, message


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


@contextmanager
def stalled(server: Any, what: str) -> Iterator[None]:
    """Hold a lock for which the next statement of this kind waits."""
    locks = {
        "statement": "SELECT 1 FROM escrowmq_state_position FOR UPDATE",
        "commit": "LOCK TABLE at_commit IN ACCESS EXCLUSIVE MODE",
    }
    with closing(psycopg.connect(server.get_uri())) as connection:
        connection.execute(locks[what])
        yield


def wait_at_commit(server: Any) -> None:
    """Let each commit of a moved position read a table, which another session can lock."""
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE TABLE at_commit (n integer)")
        connection.execute(
            "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM 1 FROM at_commit; RETURN NULL; END'"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON escrowmq_state_position"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()"
        )


def waits(server: Any, backend: int) -> bool:
    """Whether this process of the server waits for a lock."""
    with psycopg.connect(server.get_uri()) as connection:
        asked = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        return connection.execute(asked, [backend]).fetchall() == [("Lock",)]


@pytest.mark.parametrize("end", ["terminated", "killed"])
@pytest.mark.parametrize("what", ["statement", "commit"])
@pytest.mark.parametrize("work", ["follow", "replace"])
def test_a_server_that_ends_within_a_change_is_caught_up(
    server: Any, policy: CheckPolicy, work: str, what: str, end: str
) -> None:
    driver = driver_on(policy)
    rows = [driver.prepare(driver.message()) for _ in range(10)]
    driver.sync()
    wait_at_commit(server)
    follower = driver.store.follower
    assert follower is not None
    backend = backend_of(driver)
    if work == "replace":
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("DELETE FROM escrowmq_state_transactions WHERE half_offset < 5")
        follower._must_replace, follower._was_current = True, False
    # The store's own thread may not wait, so that the lock can be held here.
    follower.is_led = True
    driver.commit(rows[7])
    driver.prepare(driver.message())
    driver.sync()
    follower.is_led = False
    with ThreadPoolExecutor(1) as thread, stalled(server, what):
        following = thread.submit(follower.follow_all)
        while not waits(server, backend):
            assert not following.done()
        if end == "killed":
            kill(server)
        else:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s)", [backend])
        following.result(20)
        assert state_of(driver) == "away"
    if end == "killed":
        server.start()
    judge_states(driver.store)
    let_go(driver.store)


def test_a_copy_of_a_running_broker_is_refused(
    server: Any, policy: CheckPolicy, tmp_path: Path
) -> None:
    assert server.get_pid() is not None
    original = store_in(tmp_path / "original", policy)
    hold(original, "a")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(StoreUnusable, match="another broker") as refused:
        store_in(tmp_path / "copy", policy)
    assert refused.value.code == "state_store_claimed"
    # The original goes on, and its stop gives the claim back.
    hold(original, "b")
    judge_states(original)
    original.close()
    copy = store_in(tmp_path / "copy", policy)
    judge_states(copy)
    with pytest.raises(StoreUnusable, match="another broker"):
        store_in(tmp_path / "original", policy)
    copy.close()


def store_in(folder: Path, policy: CheckPolicy) -> Store:
    """Open the store of a broker in a directory, as its start does."""
    return start_store(OsDisk(folder), CONFIG, policy, HOST, ClockReading(T0, 0))[0]


def hold(store: Store, name: str) -> None:
    """Hold a half message, durably."""
    store.execute(prepare(name), store.last_at_ms + 1)
    store.sync()
