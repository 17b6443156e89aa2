"""``escrowmq lake``: query the lake, replay messages from it, and maintain it.

Modules that need Spark, pyarrow or deltalake are imported when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import instant_ms
from escrowmq.cli.config import load
from escrowmq.cli.output import as_facts, human_bytes, note, print_item, print_table, show_rows
from escrowmq.cli.shapes.tool_shapes import (
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

app = typer.Typer()

TABLE_COLUMNS = (
    *("table", "rows", "files"),
    ("size", lambda table: human_bytes(table.bytes)),
    ("from", "first_day"),
    ("to", "last_day"),
    "version",
)
COMPACTED_COLUMNS = ("table", ("files merged", "files_merged"), ("files made", "files_made"))
VACUUMED_COLUMNS = ("table", ("files deleted", "files_deleted"), ("files removed", "files_removed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Options of every command: where the lake is, and how the result is printed."""

    data: options.LakeDataOption = None
    lake_uri: options.LakeOption = None
    output: options.OutputOption = options.Output.TABLE
    file: options.FileOption = None

    @property
    def places(self) -> Places:
        """Where the lake and the cache of Spark are."""
        config = load(file=self.file, environ=os.environ).section(PipelineConfig)
        if self.lake_uri is not None:
            # places_of needs both places, but these commands use no checkpoints.
            checkpoints = config.checkpoint_uri or "none"
            config = replace(config, lake_uri=self.lake_uri, checkpoint_uri=checkpoints)
        if self.data is not None and not config.lake_uri and not self.data.is_dir():
            # Otherwise Spark would create the directory for its cache.
            text = "there is no such directory; correct --data-dir"
            raise RequestRefused("lake_missing", text, data_dir=str(self.data))
        return places_of(config, self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(LakeOptions):
    """Options of ``lake query``."""

    sql: Annotated[str, typer.Argument(metavar="SQL")]
    limit: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOptions(LakeOptions):
    """Options of the commands that maintain the lake."""

    table: Annotated[str | None, typer.Option("--table", help="Maintain only this table.")] = None
    dry_run: options.DryRunOption = False

    @property
    def tables(self) -> list[LakeTable]:
        """The tables to maintain."""
        from escrowmq.pipeline.lake.tables import TABLES, table_named

        return list(TABLES.values()) if self.table is None else [table_named(self.table)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(UpkeepOptions):
    """Options of ``lake vacuum``."""

    keep_days: Annotated[
        int, typer.Option(min=0, help="Delete rows of days that are older; 0 keeps all.")
    ] = 0
    keep_hours: Annotated[
        int, typer.Option(min=1, help="Keep younger files; a program may still use them.")
    ] = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(LakeOptions):
    """Options of ``lake replay``."""

    topic: Annotated[str, typer.Option("--topic", help="The topic whose messages are replayed.")]
    from_: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Replay messages visible from here on.")
    ]
    to: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Replay messages visible before this.")
    ]
    into: Annotated[
        str, typer.Option("--into", metavar="TOPIC", help="The topic that gets the messages.")
    ]
    broker: options.BrokerOption = options.DEFAULT_BROKER
    replay_id: Annotated[
        str,
        typer.Option(
            "--replay-id",
            metavar="ID",
            help="A replay with this id is done once; the default is made from the other options.",
        ),
    ] = ""
    dry_run: options.DryRunOption = False


@app.command()
@options.grouped
def query(given: QueryOptions) -> None:
    """Query the lake in SQL.

    The tables are messages, transactions, progress, settle_rounds and quarantine. There is one
    view, transaction_summary.
    """
    require_pipeline_spark()
    from escrowmq.pipeline.lake import query as lake_query

    places = given.places
    lake = _lake(places)
    with _spark(places) as spark:
        found = lake_query.query(spark, lake, given.sql, given.limit)
    show_rows(found.columns, found.rows, given.output)
    _note_if_empty(lake, given.output)
    if found.is_cut:
        note(f"only the first {given.limit} rows; --limit says how many", given.output)


@app.command()
@options.grouped
def tables(given: LakeOptions) -> None:
    """Print each table of the lake with its rows, files, size, days and version."""
    from escrowmq.pipeline.lake.extent import extents

    lake = _lake(given.places)
    found = [LakeTableShape.of(one, bytes=one.size_bytes) for one in extents(lake)]
    print_table(LakeTableShape, found, given.output, TABLE_COLUMNS)
    _note_if_empty(lake, given.output)


@app.command()
@options.grouped
def compact(given: UpkeepOptions) -> None:
    """Merge small files into fewer, larger ones."""
    from escrowmq.pipeline.lake import upkeep as lake_upkeep

    lake = _lake(given.places)
    work = lake_upkeep.to_compact if given.dry_run else lake_upkeep.compact
    compacted = [LakeCompactedShape.of(work(lake, one)) for one in given.tables]
    print_table(LakeCompactedShape, compacted, given.output, COMPACTED_COLUMNS)


@app.command()
@options.grouped
def vacuum(given: VacuumOptions) -> None:
    """Delete old rows, and remove files that no longer belong to a table."""
    from escrowmq.pipeline.lake import upkeep as lake_upkeep

    lake, is_dry = _lake(given.places), given.dry_run
    vacuumed = []
    for one in given.tables:
        deleted = 0
        if given.keep_days:
            today = datetime.now(UTC).date()
            deleted = lake_upkeep.delete_old(lake, one, today, given.keep_days, is_dry=is_dry)
        removed = lake_upkeep.remove_files(lake, one, kept_hours=given.keep_hours, is_dry=is_dry)
        vacuumed.append(
            LakeVacuumedShape(table=one.name, files_deleted=deleted, files_removed=removed)
        )
    print_table(LakeVacuumedShape, vacuumed, given.output, VACUUMED_COLUMNS)


@app.command()
@options.grouped
def replay(given: ReplayOptions) -> None:
    """Publish archived messages again, exactly once.

    All become visible at once, with their bodies, keys, tags and properties. Properties named
    REPLAYED_... tell where each came from. Write times as 2026-11-16T12:00:00Z, or in milliseconds.
    """
    require_pipeline_spark()
    from escrowmq.pipeline.lake import replay as lake_replay

    order = lake_replay.Replay(
        topic=given.topic,
        from_ms=instant_ms("--from", given.from_),
        to_ms=instant_ms("--to", given.to),
        into=given.into,
        broker=given.broker,
        replay_id=given.replay_id,
    )
    places = given.places
    with _spark(places) as spark:
        work = lake_replay.planned if given.dry_run else lake_replay.replay
        done = work(spark, _lake(places), order)
    replayed = LakeReplayedShape.of(done, was_done_before=done.is_repeated)
    facts = {
        "replay id": replayed.replay_id,
        "messages": replayed.messages,
        "was done before": replayed.was_done_before,
    }
    print_item(replayed, given.output, lambda: as_facts(facts))


def _note_if_empty(lake: Lake, output: options.Output) -> None:
    if not lake.has_tables():
        place = f"there is no lake at {lake.uri}"
        note(f"{place}: nothing was archived there yet, or the place is wrong", output)


def _lake(places: Places) -> Lake:
    from escrowmq.pipeline.lake.delta import Lake

    return Lake(places.lake)


@contextmanager
def _spark(places: Places) -> Iterator[SparkSession]:
    """Start Spark on this machine; the session lasts until the process ends."""
    from escrowmq.pipeline.spark.scratch import scratch_in
    from escrowmq.pipeline.spark.start_cache import quick_session

    with scratch_in(places.cache) as scratch:
        yield quick_session(PipelineConfig(), cache=places.cache, scratch=scratch)
