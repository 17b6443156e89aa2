"""The tables of a ledger, and its UUID, which is created with them."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy

from escrowmq.client.ledger import table
from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.shops import NOW_MS, Shop, overdue, refused


@pytest.fixture
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Yield an empty database."""
    if request.param == "sqlite":
        shop = Shop(kind="sqlite", url=f"sqlite:///{tmp_path / 'bare.db'}")
    else:
        url: str = request.getfixturevalue("postgres").get_uri()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS bare")
            admin.execute("CREATE DATABASE bare")
        shop = Shop(kind="postgresql", url=url.replace("/postgres?", "/bare?"))
    yield shop
    shop.close()


on_both = pytest.mark.parametrize("bare", ["sqlite", "postgresql"], indirect=True)


@on_both
def test_made_twice_the_ledger_keeps_its_uuid(bare: Shop) -> None:
    uuid = table.create(bare.url)
    assert re.fullmatch("[0-9a-f]{32}", uuid)
    engine = sqlalchemy.create_engine(bare.sqlalchemy_url)
    assert uuid == table.create(engine) == table.create(bare.connect)
    engine.dispose()
    assert uuid == SqlLedger(bare.url).uuid()


@on_both
def test_made_by_many_at_once_it_is_one_ledger(bare: Shop) -> None:
    with ThreadPoolExecutor(4) as pool:
        uuids = list(pool.map(table.create, [bare.url] * 4))
    assert len(set(uuids)) == 1


@on_both
def test_a_table_that_was_lost_and_made_again_is_another_ledger(bare: Shop) -> None:
    uuid = table.create(bare.url)
    bare.run("DROP TABLE escrowmq_ledger")
    assert table.create(bare.url) != uuid
    # Transactions under the old UUID wait for an operator: they are neither committed nor fenced.
    found = SqlLedger(bare.url).resolve([overdue("a")], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found["a"].outcome == "unknown"


@on_both
def test_a_migration_with_the_same_statements_makes_the_same_ledger(bare: Shop) -> None:
    with closing(bare.connect()) as connection, connection:
        for statement in table.ddl(bare.kind).split(";\n"):
            connection.execute(statement)
    uuid = SqlLedger(bare.url).uuid()
    assert table.create(bare.url) == uuid
    found = SqlLedger(bare.url).resolve([overdue("a")], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found["a"].outcome == "rolled_back"


def test_two_databases_are_two_ledgers(tmp_path: Path) -> None:
    uuids = {table.create(f"sqlite:///{tmp_path / name}") for name in ("a.db", "b.db")}
    assert len(uuids) == 2


@on_both
def test_a_ledger_has_one_uuid(bare: Shop) -> None:
    table.create(bare.url)
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        bare.run("INSERT INTO escrowmq_ledger_id VALUES (2, 'second')")
    bare.run("DELETE FROM escrowmq_ledger_id")
    with refused("ledger_missing"):
        SqlLedger(bare.url).uuid()


@on_both
def test_a_message_is_consumed_once_in_a_group(bare: Shop) -> None:
    table.create(bare.url)
    bare.run("INSERT INTO escrowmq_consumed VALUES ('g', 't', 'm', 1, 1)")
    bare.run("INSERT INTO escrowmq_consumed VALUES ('h', 't', 'm', 1, 1)")
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        bare.run("INSERT INTO escrowmq_consumed VALUES ('g', 't', 'm', 2, 2)")


@on_both
def test_without_tables_there_is_no_uuid(bare: Shop) -> None:
    bare.run("SELECT 1")
    with refused("ledger_missing"):
        SqlLedger(bare.url).uuid()


def test_without_a_file_there_is_no_uuid_and_none_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'gone.db'}"
    engine = sqlalchemy.create_engine(url)
    for database in (url, engine):
        with refused("ledger_unreachable"):
            SqlLedger(database).uuid()
    engine.dispose()
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a%20b#c.db'}"
    engine = sqlalchemy.create_engine(url)
    assert table.create(engine) == SqlLedger(url).uuid()
    engine.dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["a b#c.db"]


@pytest.mark.parametrize("dialect", ["mysql", "oracle", "", "SQLite"])
def test_there_is_no_text_for_a_database_that_no_ledger_can_be_in(dialect: str) -> None:
    with refused("database_unsupported"):
        table.ddl(dialect)


@pytest.mark.parametrize(
    "database",
    [
        "oracle://x",
        "no url",
        7,
        None,
        object,
        sqlite3.connect(":memory:"),
        "sqlite://",
        "sqlite:///:memory:",
    ],
    ids=["oracle", "text", "number", "none", "odd factory", "connection", "no path", "memory"],
)
def test_an_object_that_is_no_database_is_refused(database: Any) -> None:
    with refused("database_unsupported"):
        SqlLedger(database).uuid()


def test_an_unknown_dialect_is_refused() -> None:
    with refused("database_unsupported"):
        table.ddl("oracle")


def test_importing_the_ledger_imports_no_driver() -> None:
    code = (
        "import sys, escrowmq.client.ledger.table\n"
        "heavy = {'sqlalchemy', 'psycopg', 'aiosqlite', 'numpy', 'pyarrow', 'pyspark'}\n"
        "sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
