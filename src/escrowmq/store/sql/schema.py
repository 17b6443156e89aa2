"""Tables and view of the state store in a database. Several brokers may share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.errors import StoreUnusable
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table

SCHEMA_VERSION = 1
PREFIX = "escrowmq_state_"
VIEW = "escrowmq_undecided"
NAME_CHARS_MAX = 512
"""Longest name of a group, ledger, epoch or place in a row."""


class StateTables(NamedTuple):
    """The tables."""

    metadata: MetaData
    #: One row: the version of the schema.
    version: Table
    #: One row for each store: how far its rows are, and which broker writes them.
    position: Table
    #: One row for each undecided transaction, by store and half offset of its head.
    transactions: Table


def state_tables() -> StateTables:
    """Return the definitions of the tables."""
    import sqlalchemy as sa

    metadata = sa.MetaData()
    name = sa.String(NAME_CHARS_MAX)
    version = sa.Table(f"{PREFIX}version", metadata, sa.Column("version", sa.Integer))
    position = sa.Table(
        f"{PREFIX}position",
        metadata,
        sa.Column("store_id", sa.String(32), primary_key=True),
        sa.Column("epoch", name, nullable=False),
        sa.Column("log_offset", sa.BigInteger, nullable=False),
        sa.Column("rows_end", sa.BigInteger, nullable=False),
        # Batches, replaced ranges and clean stops, since the store id was first claimed.
        sa.Column("batches", sa.BigInteger, nullable=False),
        sa.Column("place", name, nullable=False),
        # When its broker wrote last, by the database's clock; NULL once that broker has stopped.
        sa.Column("beat_at", sa.Double),
    )
    transactions = sa.Table(
        f"{PREFIX}transactions",
        metadata,
        sa.Column("store_id", sa.String(32), primary_key=True),
        sa.Column("half_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", name, nullable=False),
        sa.Column("log_offset", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("stored_at_ms", sa.BigInteger, nullable=False),
        sa.Column("producer_group", name, nullable=False),
        sa.Column("ledger", name, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("checks_sent", sa.SmallInteger, nullable=False),
        # NULL for a parked transaction, which is never due.
        sa.Column("next_check_at_ms", sa.BigInteger),
        # A scan for what is due reads an index alone.
        sa.Index(f"{PREFIX}due", "store_id", "next_check_at_ms", "half_offset", "state"),
        sa.Index(f"{PREFIX}age", "store_id", "stored_at_ms", "half_offset", "state"),
    )
    return StateTables(metadata, version, position, transactions)


def make_tables(connection: Connection, tables: StateTables) -> None:
    """Make the tables and the view if they do not exist; raise if they have another version."""
    import sqlalchemy as sa

    found = _version(connection, tables)
    if found is None:
        tables.metadata.create_all(connection)
        connection.execute(sa.text(f"DROP VIEW IF EXISTS {VIEW}"))
        connection.execute(sa.text(_view(tables)))
        # Last, because SQLite may have committed what is above before the process was killed.
        connection.execute(tables.version.insert().values(version=SCHEMA_VERSION))
        return
    if found != SCHEMA_VERSION:
        advice = "stop the brokers of this database and run `escrowmq store migrate --to sql`"
        if found > SCHEMA_VERSION:
            advice = "a newer EscrowMQ made these tables; use that one"
        raise StoreUnusable("state_schema_unknown", advice, version=found, known=SCHEMA_VERSION)


def remake_old_tables(connection: Connection, tables: StateTables) -> None:
    """Replace tables of an older version by empty ones: every broker fills its rows again."""
    import sqlalchemy as sa

    found = _version(connection, tables)
    if found is None or found >= SCHEMA_VERSION:
        return
    connection.execute(sa.text(f"DROP VIEW IF EXISTS {VIEW}"))
    tables.metadata.drop_all(connection)
    make_tables(connection, tables)


def _version(connection: Connection, tables: StateTables) -> int | None:
    """Return the version of the tables; None if they do not exist, or not all of them."""
    import sqlalchemy as sa

    if not sa.inspect(connection).has_table(tables.version.name):
        return None
    return connection.execute(sa.select(tables.version.c.version)).scalar()


def _view(tables: StateTables) -> str:
    """Return the statement that makes the view for people."""
    return f"""
        CREATE VIEW {VIEW} AS
        SELECT store_id, half_offset,
               CASE state WHEN {int(State.PARKED)} THEN 'parked' ELSE 'prepared' END AS state,
               producer_group, ledger, stored_at_ms, checks_sent, next_check_at_ms,
               log_offset, size, epoch
        FROM {tables.transactions.name}
    """  # noqa: S608 - constants only
