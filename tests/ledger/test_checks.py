"""Checks answer COMMITTED or ROLLED_BACK only for what they read, and UNKNOWN otherwise."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from escrowmq.client.ledger import checks, table
from escrowmq.client.ledger.table import Question, SqlLedger
from tests.ledger.shops import (
    COMMITTED,
    GROUP,
    LONG_TO_COME_MS,
    NOW_MS,
    ROLLED_BACK,
    Shop,
    begin,
    driver_hand,
    new_id,
    overdue,
    refused,
    sqlite_shop,
    unknown,
)


def commit_one(shop: Shop) -> str:
    key = new_id()
    with driver_hand(shop) as hand:
        transaction = begin(shop, hand.db, key)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    return key


def test_a_row_that_was_committed_is_read_as_committed(shop: Shop) -> None:
    key = commit_one(shop)
    assert shop.settle(overdue(key)) == {key: COMMITTED}
    assert shop.outcomes() == {key: "committed"}


def test_a_look_up_changes_nothing(shop: Shop) -> None:
    ledger = shop.ledger()
    key = new_id()
    found = ledger.look_up([overdue(key)], ledger_uuid=ledger.uuid())
    assert found == {key: unknown("absent")}
    assert shop.outcomes() == {}


def test_only_what_is_absent_past_its_deadline_is_fenced(shop: Shop) -> None:
    there, early, late, on_time = commit_one(shop), new_id(), new_id(), new_id()
    found = shop.settle(
        overdue(there),
        Question(early, GROUP, LONG_TO_COME_MS),
        Question(on_time, GROUP, NOW_MS),
        overdue(late),
    )
    assert found == {
        there: COMMITTED,
        early: unknown("absent"),
        on_time: unknown("absent"),
        late: ROLLED_BACK,
    }
    assert shop.outcomes() == {there: "committed", late: "rolled_back"}


def test_a_fence_is_read_as_rolled_back_ever_after(shop: Shop) -> None:
    key = new_id()
    assert shop.settle(overdue(key)) == shop.settle(overdue(key)) == {key: ROLLED_BACK}


def test_thousands_are_settled_in_chunks(shop: Shop) -> None:
    there = {commit_one(shop) for _ in range(3)}
    absent = {new_id() for _ in range(3 * checks.CHUNK_ROWS_MAX)}
    found = shop.settle(*(overdue(key) for key in there | absent))
    assert {key for key, answer in found.items() if answer == COMMITTED} == there
    assert {key for key, answer in found.items() if answer == ROLLED_BACK} == absent


def test_a_ledger_is_reached_by_url_engine_and_function(shop: Shop) -> None:
    key = commit_one(shop)
    uuid = shop.ledger().uuid()
    for database in (shop.url, shop.sqlalchemy_url, shop.engine(), shop.connect):
        ledger = SqlLedger(database)
        late = new_id()
        found = ledger.resolve([overdue(key), overdue(late)], ledger_uuid=uuid, now_ms=NOW_MS)
        assert found == {key: COMMITTED, late: ROLLED_BACK}
        assert ledger.uuid() == uuid


def test_an_engine_in_autocommit_fences_in_transactions_all_the_same(postgres_shop: Shop) -> None:
    engine = postgres_shop.engine(isolation_level="AUTOCOMMIT")
    key = new_id()
    uuid = postgres_shop.ledger().uuid()
    found = SqlLedger(engine).resolve([overdue(key)], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found == {key: ROLLED_BACK}


def test_a_pooled_connection_keeps_its_own_patience(file_shop: Shop) -> None:
    engine = file_shop.engine(poolclass=sqlalchemy.QueuePool, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 1234")
    key = new_id()
    uuid = file_shop.ledger().uuid()
    assert SqlLedger(engine).resolve([overdue(key)], ledger_uuid=uuid, now_ms=NOW_MS) == {
        key: ROLLED_BACK
    }
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1234


@pytest.mark.parametrize(
    ("group", "outcome", "reason"),
    [
        (GROUP, "COMMITTED", "odd_row"),
        (GROUP, "commit", "odd_row"),
        (GROUP, "", "odd_row"),
        (GROUP, "unknown", "odd_row"),
        ("payments", "committed", "other_group"),
        ("payments", "rolled_back", "other_group"),
    ],
)
def test_an_odd_row_is_unknown_and_stays_as_it_is(
    shop: Shop, group: str, outcome: str, reason: str
) -> None:
    key = new_id()
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{group}', '{outcome}', 1)")
    assert shop.settle(overdue(key)) == {key: unknown(reason)}
    assert shop.outcomes() == {key: outcome}


@pytest.mark.parametrize("illegal", ["", "x" * 256, "nul\0", "half \ud800", "line\n"])
def test_an_illegal_id_spoils_no_other_answer(shop: Shop, illegal: str) -> None:
    key = commit_one(shop)
    found = shop.settle(overdue(key), overdue(illegal), overdue("good", group=illegal))
    assert found == {
        key: COMMITTED,
        illegal: unknown("illegal_id"),
        "good": unknown("illegal_id"),
    }


def test_one_id_of_two_groups_is_unknown(shop: Shop) -> None:
    key = new_id()
    found = shop.settle(overdue(key), overdue(key, group="payments"))
    assert found == {key: unknown("ambiguous")}
    assert shop.outcomes() == {}


def test_another_shard_is_unknown_and_never_fenced(shop: Shop, tmp_path: Path) -> None:
    other = sqlite_shop(tmp_path, "other.db")
    key = new_id()
    found = shop.ledger().resolve([overdue(key)], ledger_uuid=other.ledger().uuid(), now_ms=NOW_MS)
    assert found == {key: unknown("other_ledger")}
    assert shop.outcomes() == {}


def test_a_ledger_without_its_uuid_is_unknown(file_shop: Shop) -> None:
    uuid = file_shop.ledger().uuid()
    file_shop.run("DELETE FROM escrowmq_ledger_id")
    key = new_id()
    found = file_shop.ledger().resolve([overdue(key)], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found == {key: unknown("other_ledger")}
    assert file_shop.outcomes() == {}


def test_a_file_that_is_not_there_is_unknown_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "gone.db"
    url = f"sqlite:///{path}"
    engine = sqlalchemy.create_engine(url)
    for database in (url, engine):
        found = SqlLedger(database).resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
        assert next(iter(found)) == "a"
        assert found["a"].outcome == "unknown"
    engine.dispose()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_unknown_and_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    url = f"sqlite:///{path}"
    engine = sqlalchemy.create_engine(url)
    for database in (url, engine):
        found = SqlLedger(database).resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
        assert found == {"a": unknown("ledger_missing")}
    engine.dispose()
    assert path.read_bytes() == b""


def test_a_file_that_is_no_database_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database" * 100)
    found = SqlLedger(f"sqlite:///{path}").resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
    assert found == {"a": unknown("database_failed")}


def test_a_server_without_the_table_is_unknown(postgres_url: str) -> None:
    url = postgres_url.replace("/postgres?", "/template1?")
    found = SqlLedger(url).resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
    assert found == {"a": unknown("ledger_missing")}


def test_a_server_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    ledger = SqlLedger(f"postgresql://nobody@/nothing?host={tmp_path}")
    found = ledger.resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
    assert found == {"a": unknown("ledger_unreachable")}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:open@sesame@127.0.0.1/orders",
        "postgresql://shop:open/sesame@127.0.0.1/orders",
        "postgresql://shop:sesame@127.0.0.1/orders?nonsense=1",
    ],
)
def test_the_error_for_an_unreadable_url_hides_its_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = SqlLedger(url)
    found = ledger.resolve([overdue("a")], ledger_uuid="x", now_ms=NOW_MS)
    assert found == {"a": unknown("bad_ledger_url")}
    with refused("bad_ledger_url"):
        ledger.uuid()
    (line,) = caplog.records
    assert not re.search("open|sesame", str(vars(line)))


def test_a_read_only_database_is_read_and_not_fenced(file_shop: Shop) -> None:
    there, absent = commit_one(file_shop), new_id()
    ledger = SqlLedger(lambda: sqlite3.connect(f"file:{file_shop.path}?mode=ro", uri=True))
    found = ledger.resolve(
        [overdue(there), overdue(absent)], ledger_uuid=file_shop.ledger().uuid(), now_ms=NOW_MS
    )
    assert found == {there: COMMITTED, absent: unknown("read_only")}


def test_a_locked_file_is_unknown(file_shop: Shop) -> None:
    there, absent = commit_one(file_shop), new_id()
    uuid = file_shop.ledger().uuid()
    with closing(file_shop.connect(isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        found = file_shop.settle(overdue(there), overdue(absent))
        assert found == {there: COMMITTED, absent: unknown("locked")}
        writer.execute("COMMIT")
        writer.execute("BEGIN EXCLUSIVE")
        found = file_shop.ledger().resolve(
            [overdue(there), overdue(absent)], ledger_uuid=uuid, now_ms=NOW_MS
        )
        assert found == {there: unknown("locked"), absent: unknown("locked")}
        writer.execute("ROLLBACK")
    assert file_shop.settle(overdue(absent)) == {absent: ROLLED_BACK}


def test_a_prepared_transaction_is_unknown_until_it_is_committed(postgres_shop: Shop) -> None:
    key = new_id()
    with driver_hand(postgres_shop) as hand:
        begin(postgres_shop, hand.db, key).insert_row(NOW_MS)
        hand.execute("PREPARE TRANSACTION 'in doubt'")
    assert postgres_shop.settle(overdue(key)) == {key: unknown("locked")}
    with driver_hand(postgres_shop, autocommit=True) as hand:
        hand.execute("COMMIT PREPARED 'in doubt'")
    assert postgres_shop.settle(overdue(key)) == {key: COMMITTED}


def test_a_fence_is_durable_where_the_server_is_lax(postgres_shop: Shop) -> None:
    """A fence that a crash may lose must not be acted on; the test watches the fence's COMMIT."""
    postgres_shop.run("CREATE TABLE seen (setting text)")
    postgres_shop.run(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    postgres_shop.run(
        "CREATE CONSTRAINT TRIGGER seeing AFTER INSERT ON escrowmq_ledger"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
    )

    def connect() -> object:
        return psycopg.connect(postgres_shop.url, options="-c synchronous_commit=off")

    key = new_id()
    uuid = postgres_shop.ledger().uuid()
    try:
        found = SqlLedger(connect).resolve([overdue(key)], ledger_uuid=uuid, now_ms=NOW_MS)
        seen = postgres_shop.run("SELECT setting FROM seen")
    finally:
        postgres_shop.run("DROP TABLE seen")
        postgres_shop.run("DROP FUNCTION see() CASCADE")
    assert (found, seen) == ({key: ROLLED_BACK}, [("on",)])


def test_a_copy_made_by_restoring_files_is_the_same_ledger(file_shop: Shop, tmp_path: Path) -> None:
    """Known limit: a copy must be given its own UUID."""
    copy = tmp_path / "copy.db"
    shutil.copy(file_shop.path, copy)
    assert table.SqlLedger(f"sqlite:///{copy}").uuid() == file_shop.ledger().uuid()


async def test_the_old_names_still_work_and_warn(shop: Shop) -> None:
    ledger, key = shop.ledger(), new_id()
    terms = {"ledger_uuid": ledger.uuid(), "now_ms": NOW_MS}
    with pytest.warns(DeprecationWarning, match="called resolve now"):
        old = ledger.settle([overdue(key)], **terms)  # type: ignore[arg-type]  # str and int
    with pytest.warns(DeprecationWarning, match="called resolve_async now"):
        again = await ledger.settle_async([overdue(key)], **terms)  # type: ignore[arg-type]
    assert old == again == ledger.resolve([overdue(key)], **terms)  # type: ignore[arg-type]
