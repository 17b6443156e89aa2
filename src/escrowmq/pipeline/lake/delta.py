"""The lake: Delta tables below one directory, written without Spark's help and read by anybody.

Tasks write files (``files.py``); a commit here makes them part of a table, all at once.  What a
commit depends on is asked of the table's newest version, and whoever else commits meanwhile makes
it ask again: so two drivers cannot both be told yes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.lake.files import TableFiles, WrittenFile
from escrowmq.pipeline.lake.storage import absolute, for_spark
from escrowmq.pipeline.lake.tables import TABLES, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMIT_TRIES_MAX = 20
"""Others may commit at the same time: a compaction, retention, another driver."""

SETTINGS = {
    # A table is loaded from its last checkpoint on, and a commit comes every few seconds.
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
    # What was taken out of the table can be read for so long by those who had begun.
    "delta.deletedFileRetentionDuration": "interval 1 days",
}

#: Asked of a table's newest version: the transactions that a commit writes with its files.  None
#: means that it was committed before.
Entitlement: TypeAlias = Callable[[DeltaTable], Sequence[Transaction] | None]


class Lake:
    """The tables below `uri`: a directory, or what the deltalake package takes.

    ``storage`` are that package's options for it.  Used on the driver, by one thread at a time;
    tasks get ``uri_of`` and ``storage``.
    """

    def __init__(self, uri: str | Path, storage: Mapping[str, str] | None = None) -> None:
        self.uri = absolute(uri)
        self.storage = dict(storage or {})

    def uri_of(self, table: LakeTable) -> str:
        """Where the table is."""
        return f"{self.uri}/{table.name}"

    def find(self, table: LakeTable) -> DeltaTable | None:
        """The table's newest version, if there is one."""
        with told(table):
            try:
                return DeltaTable(self.uri_of(table), storage_options=self.storage)
            except TableNotFoundError:
                return None

    def has_tables(self) -> bool:
        """Whether an archive has ever made a table here."""
        return any(self.find(table) is not None for table in TABLES.values())

    def open(self, table: LakeTable) -> DeltaTable:
        """The table's newest version; the table is made if there is none."""
        found = self.find(table)
        if found is not None:
            return found
        with told(table):
            return DeltaTable.create(
                self.uri_of(table),
                table.arrow_schema(),
                # Somebody else may have made it just now.
                mode="ignore",
                partition_by=list(table.partitioned_by),
                name=table.name,
                description=table.about,
                configuration=_settings(table),
                storage_options=self.storage,
            )

    def commit(self, table: LakeTable, files: Iterable[WrittenFile], entitled: Entitlement) -> bool:
        """Make the files part of the table, if it is not done yet; whether it was to be done.

        Raises:
            Unavailable: ``lake_busy``, ``lake_unreachable``.
            EscrowError: what `entitled` says.
        """
        actions = [_addition(file) for file in files]
        for _ in range(COMMIT_TRIES_MAX):
            delta = self.open(table)
            with told(table):
                transactions = entitled(delta)
                if transactions is None:
                    return False
                try:
                    delta.create_write_transaction(
                        actions,  # type: ignore[arg-type]  # its list is invariant, ours is fresh
                        mode="append",
                        schema=delta.schema(),
                        partition_by=list(table.partitioned_by),
                        commit_properties=CommitProperties(app_transactions=list(transactions)),
                    )
                except CommitFailedError:
                    continue
            return True
        raise Unavailable(
            "lake_busy",
            "others commit to it all the time",
            table=table.name,
            tries=COMMIT_TRIES_MAX,
        )

    def append(self, table: LakeTable, rows: pa.RecordBatch, entitled: Entitlement) -> bool:
        """Write a few rows from here, the driver, and commit them."""
        self.open(table)
        with told(table):
            files = TableFiles(table, self.uri_of(table), self.storage)
            files.add(rows)
            written = files.finish()
        return self.commit(table, written, entitled)

    def read(self, spark: SparkSession, table: LakeTable) -> DataFrame:
        """The table as it is now: later commits do not change what the DataFrame holds."""
        found = self.find(table)
        paths = [] if found is None else pa.table(found.get_add_actions())["path"].to_pylist()
        if not paths:
            return spark.createDataFrame([], table.ddl())
        # The schema spares Spark a look into files; below the base path, directories are columns.
        base = for_spark(self.uri_of(table))
        reader = spark.read.schema(table.ddl()).option("basePath", base)
        # Delta's log has them as parts of a URI.
        frame = reader.parquet(*(f"{base}/{unquote(path)}" for path in paths))
        return frame.select(*table.arrow_schema().names)


def _settings(table: LakeTable) -> dict[str, str | None]:
    # Without it readers take columns for null that have no statistics, and pass over their files.
    return {**SETTINGS, "delta.dataSkippingStatsColumns": ",".join(table.ranged_by)}


def _addition(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=json.loads(file.partition),
        modification_time=file.modified_at_ms,
        data_change=True,
        stats=file.stats,
    )


@contextmanager
def told(table: LakeTable) -> Iterator[None]:
    """What Delta and the file system raise, in our words."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise Unavailable(
            "lake_unreachable", "the lake's storage", table=table.name, cause=str(error)[:500]
        ) from error
