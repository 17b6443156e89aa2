"""``escrowmq ledger``: show the tables of a ledger, and migrate them to the current version."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from escrowmq.cli.options import FileOption, Output, OutputOption, SetOption
from escrowmq.cli.output import as_facts, as_table, print_item
from escrowmq.cli.shapes.tool_shapes import (
    LedgerMarkShape,
    LedgerMigratedShape,
    LedgerShape,
    LedgerSqlShape,
)
from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import cutting, opener_of, reading
from escrowmq.client.database.ledger_sql import VERSION
from escrowmq.client.ledger.marks import read_marks, stated_version
from escrowmq.client.ledger.table import SqlLedger, ddl, telling_faults, uuid_of
from escrowmq.model.errors import EscrowError, RequestRefused

app = typer.Typer()

ANSWER_S = 30.0
MARK_COLUMNS = ("store", "epoch", "log_end", "half_end")

#: Errors of a database without a ledger, and of an SQLite file that does not exist yet.
_NONE_THERE = ("ledger_missing", "ledger_unreachable")
_COUNT = "SELECT outcome, count(*) FROM escrowmq_ledger GROUP BY outcome ORDER BY outcome"

DatabaseArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL|NAME", help="URL of a database, or the NAME of a [ledger.NAME] in the config."
    ),
]


@app.command()
def migrate(
    database: DatabaseArgument,
    *,
    create: Annotated[
        bool, typer.Option("--create", help="Create a ledger if the database has none.")
    ] = False,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Migrate the tables of a ledger to the current version; its UUID and rows stay."""
    found = SqlLedger(_url(database, file, set_))
    version_before = None
    try:
        uuid, version_before, _ = found.migrate()
    except EscrowError as error:
        if not create and error.code == "ledger_missing":
            advice = "--create makes a new ledger; if the database had one before, restore it"
            raise RequestRefused("ledger_missing", advice) from error
        if not create or error.code not in _NONE_THERE:
            raise
        with telling_faults():
            uuid = found.create()
    done = LedgerMigratedShape(uuid=uuid, version_before=version_before, version=VERSION)
    print_item(done, output, lambda: as_facts(msgspec.structs.asdict(done)))


@app.command()
def show(
    database: DatabaseArgument,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Print a ledger's UUID, version, number of rows by outcome, and sweep marks."""
    opener = opener_of(_url(database, file, set_))
    with (
        telling_faults(),
        opener() as connection,
        cutting(connection, time.monotonic() + ANSWER_S),
        reading(connection),
    ):
        found = _looked_at(connection)
    print_item(found, output, lambda: _shown_text(found))


def _shown_text(found: LedgerShape) -> str:
    facts = msgspec.structs.asdict(found) | {"marks": len(found.marks)}
    marks = [msgspec.structs.astuple(mark) for mark in found.marks]
    return as_facts(facts) + (f"\n\n{as_table(MARK_COLUMNS, marks)}" if marks else "")


@app.command(name="sql")
def sql_(
    dialect: Annotated[str, typer.Argument(metavar="DIALECT", help="sqlite or postgresql.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the SQL that creates or updates a ledger, for a migration tool."""
    made = LedgerSqlShape(dialect=dialect, sql=ddl(dialect))
    print_item(made, output, lambda: made.sql.removesuffix("\n"))


def _looked_at(connection: DatabaseConnection) -> LedgerShape:
    uuid, stated = uuid_of(connection), stated_version(connection)
    marks = read_marks(connection).sights if stated.version == VERSION else ()
    return LedgerShape(
        uuid=uuid,
        database=connection.dialect.name,
        version=stated.version,
        current_version=VERSION,
        is_swept_unmarked=stated.is_swept_unmarked,
        rows=dict(connection.execute(_COUNT).rows),
        marks=[
            LedgerMarkShape(
                store=mark.store_id,
                epoch=mark.lineage.epoch,
                log_end=mark.log_end,
                half_end=mark.half_end,
            )
            for mark in marks
        ],
    )


def _url(database: str, file: Path | None, flags: list[str] | None) -> str:
    """Return the database URL: the given one, or that of a ledger in the config."""
    from escrowmq.cli.config import load
    from escrowmq.look_up.ledger_config import expand

    if "://" in database:
        return expand(database, os.environ)
    configured = load(file=file, environ=os.environ, flags=flags or ()).ledgers
    if database not in configured:
        raise RequestRefused(
            "bad_option",
            "a URL, or the name of a [ledger.NAME] of the config",
            option="URL|NAME",
            value=database[:128],
            known=",".join(configured) or None,
        )
    return configured[database].url
