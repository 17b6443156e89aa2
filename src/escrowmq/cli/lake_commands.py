"""``escrowmq lake``: query the lake, replay messages from it, and maintain it.

Modules that need Spark, pyarrow or deltalake are imported when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption
from escrowmq.cli.config import load
from escrowmq.cli.options import FileOption, instant_ms
from escrowmq.cli.output import (
    Output,
    OutputOption,
    as_facts,
    as_table,
    human_bytes,
    note,
    print_item,
    print_list,
    show_rows,
)
from escrowmq.cli.tool_shapes import (
    LakeCompactedShape,
    LakeReplayedShape,
    LakeTableShape,
    LakeVacuumedShape,
)
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig, Places, places_of
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.lake.delta import Lake
    from escrowmq.pipeline.lake.tables import LakeTable

app = typer.Typer(help="Ask the lake, and keep it in order.", no_args_is_help=True)

ROWS_MAX = 1_000

DataOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The broker's: the lake is in it.")
]
LakeOption = Annotated[
    str | None, typer.Option("--lake", metavar="URI", help="The lake, if it is elsewhere.")
]
TableOption = Annotated[str | None, typer.Option("--table", help="Only this table.")]


@app.callback()
def lake() -> None:
    """Ask the lake, and keep it in order."""


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL")],
    *,
    data: DataOption = None,
    lake_uri: LakeOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to print, at most.")] = ROWS_MAX,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Query the lake in SQL.

    The tables are messages, transactions, progress, settle_rounds and quarantine. There is one
    view, transaction_summary.
    """
    require_pipeline_spark()
    from escrowmq.pipeline.lake import query as lake_query

    places = _places(data, lake_uri, file)
    lake = _lake(places)
    with _spark(places) as spark:
        found = lake_query.query(spark, lake, sql, limit)
    show_rows(found.columns, found.rows, output)
    _note_if_empty(lake, output)
    if found.is_cut:
        note(f"only the first {limit} rows; --limit says how many", output)


@app.command()
def tables(
    data: DataOption = None,
    lake_uri: LakeOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Print each table of the lake with its rows, files, size, days and version."""
    from escrowmq.pipeline.lake.extent import extents

    lake = _lake(_places(data, lake_uri, file))
    found = [
        LakeTableShape(
            table=one.table,
            rows=one.rows,
            files=one.files,
            bytes=one.size_bytes,
            first_day=one.first_day,
            last_day=one.last_day,
            version=one.version,
        )
        for one in extents(lake)
    ]

    def table() -> str:
        columns = ("table", "rows", "files", "size", "from", "to", "version")
        return as_table(columns, [_table_cells(one) for one in found])

    print_list(LakeTableShape, found, output, table)
    _note_if_empty(lake, output)


def _table_cells(one: LakeTableShape) -> tuple[object, ...]:
    size = human_bytes(one.bytes)
    return one.table, one.rows, one.files, size, one.first_day, one.last_day, one.version


@app.command()
def compact(
    data: DataOption = None,
    lake_uri: LakeOption = None,
    table: TableOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Merge small files into fewer, larger ones."""
    from escrowmq.pipeline.lake import upkeep as lake_upkeep

    found = _lake(_places(data, lake_uri, file))
    work = lake_upkeep.to_compact if dry_run else lake_upkeep.compact
    done = [work(found, one) for one in _tables(table)]
    compacted = [
        LakeCompactedShape(
            table=one.table, files_merged=one.files_merged, files_made=one.files_made
        )
        for one in done
    ]

    def as_text() -> str:
        rows = [(one.table, one.files_merged, one.files_made) for one in compacted]
        return as_table(("table", "files merged", "files made"), rows)

    print_list(LakeCompactedShape, compacted, output, as_text)


@app.command()
def vacuum(
    data: DataOption = None,
    lake_uri: LakeOption = None,
    table: TableOption = None,
    *,
    keep_days: Annotated[
        int, typer.Option(min=0, help="Delete the rows of older days; 0 keeps all.")
    ] = 0,
    keep_hours: Annotated[
        int, typer.Option(min=1, help="Leave files alone that somebody may still read or write.")
    ] = 24,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Delete old rows, and remove files that no longer belong to a table."""
    from escrowmq.pipeline.lake import upkeep as lake_upkeep

    found = _lake(_places(data, lake_uri, file))
    vacuumed = []
    for one in _tables(table):
        deleted = 0
        if keep_days:
            today = datetime.now(UTC).date()
            deleted = lake_upkeep.delete_old(found, one, today, keep_days, is_dry=dry_run)
        removed = lake_upkeep.remove_files(found, one, kept_hours=keep_hours, is_dry=dry_run)
        vacuumed.append(
            LakeVacuumedShape(table=one.name, files_deleted=deleted, files_removed=removed)
        )

    def as_text() -> str:
        rows = [(one.table, one.files_deleted, one.files_removed) for one in vacuumed]
        return as_table(("table", "files deleted", "files removed"), rows)

    print_list(LakeVacuumedShape, vacuumed, output, as_text)


@app.command()
def replay(
    *,
    topic: Annotated[str, typer.Option("--topic", help="Whose messages.")],
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help="Visible then or later.")],
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Visible before.")],
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="Where they go.")],
    broker: BrokerOption = DEFAULT_BROKER,
    replay_id: Annotated[
        str, typer.Option("--replay-id", metavar="ID", help="Done once; else made of the rest.")
    ] = "",
    data: DataOption = None,
    lake_uri: LakeOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Publish archived messages again, exactly once.

    All become visible at once, with their bodies, keys, tags and properties. Properties named
    REPLAYED_... tell where each came from. Write times as 2026-11-16T12:00:00Z, or in milliseconds.
    """
    require_pipeline_spark()
    from escrowmq.pipeline.lake import replay as lake_replay

    order = lake_replay.Replay(
        topic=topic,
        from_ms=instant_ms("--from", from_),
        to_ms=instant_ms("--to", to),
        into=into,
        broker=broker,
        replay_id=replay_id,
    )
    places = _places(data, lake_uri, file)
    with _spark(places) as spark:
        work = lake_replay.planned if dry_run else lake_replay.replay
        done = work(spark, _lake(places), order)
    replayed = LakeReplayedShape(
        replay_id=done.replay_id, messages=done.messages, was_done_before=done.is_repeated
    )

    def as_text() -> str:
        told = {"replay id": replayed.replay_id, "messages": replayed.messages}
        return as_facts(told | {"was done before": replayed.was_done_before})

    print_item(replayed, output, as_text)


def _places(data: Path | None, lake_uri: str | None, file: Path | None) -> Places:
    config = load(file=file, environ=os.environ).section(PipelineConfig)
    if lake_uri is not None:
        # places_of needs both places, but these commands use no checkpoints.
        config = replace(config, lake_uri=lake_uri, checkpoint_uri=config.checkpoint_uri or "none")
    if data is not None and not config.lake_uri and not data.is_dir():
        # Otherwise Spark would create the directory for its cache.
        text = "there is no such directory; correct --data-dir"
        raise RequestRefused("lake_missing", text, data_dir=str(data))
    return places_of(config, data)


def _note_if_empty(lake: Lake, output: Output) -> None:
    if not lake.has_tables():
        place = f"there is no lake at {lake.uri}"
        note(f"{place}: nothing was archived there yet, or the place is wrong", output)


def _lake(places: Places) -> Lake:
    from escrowmq.pipeline.lake.delta import Lake

    return Lake(places.lake)


def _tables(name: str | None) -> list[LakeTable]:
    from escrowmq.pipeline.lake.tables import TABLES, table_named

    return list(TABLES.values()) if name is None else [table_named(name)]


@contextmanager
def _spark(places: Places) -> Iterator[SparkSession]:
    """Start Spark on this machine; the session lasts until the process ends."""
    from escrowmq.pipeline.spark.scratch import scratch_in
    from escrowmq.pipeline.spark.start_cache import quick_session

    with scratch_in(places.cache) as scratch:
        yield quick_session(PipelineConfig(), cache=places.cache, scratch=scratch)
