"""The lake: Delta tables under one directory, written without Spark, for any Delta reader.

Tasks write files (``files.py``). A commit here adds them to a table, all at once. The conditions of
a commit are checked against the table's newest version. If another writer commits first, they are
checked again, so two drivers cannot both succeed.
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
"""Other writers may commit at the same time: a compaction, retention, another driver."""

SETTINGS = {
    # A table is loaded from its last checkpoint, and a commit comes every few seconds.
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
    # Queries that have begun can read files for this long after their removal from the table.
    "delta.deletedFileRetentionDuration": "interval 1 days",
}

#: Checks a table's newest version and returns the transactions that a commit writes with its files.
#: None means that the commit was made before.
Entitlement: TypeAlias = Callable[[DeltaTable], Sequence[Transaction] | None]


class Lake:
    """The tables under `uri`: a directory, or any URI that the deltalake package accepts.

    ``storage`` holds that package's options for it. Used by one thread at a time, on the driver or
    as a copy in a task.
    """

    def __init__(self, uri: str | Path, storage: Mapping[str, str] | None = None) -> None:
        self.uri = absolute(uri)
        self.storage = dict(storage or {})

    def uri_of(self, table: LakeTable) -> str:
        """The URI of the table."""
        return f"{self.uri}/{table.name}"

    def files(self, table: LakeTable) -> TableFiles:
        """A writer of new files for the table. They belong to it once they are committed."""
        return TableFiles(table, self.uri_of(table), self.storage)

    def find(self, table: LakeTable) -> DeltaTable | None:
        """The table's newest version, or None if it does not exist."""
        with told(table):
            try:
                return DeltaTable(self.uri_of(table), storage_options=self.storage)
            except TableNotFoundError:
                return None

    def has_tables(self) -> bool:
        """Whether an archive has ever created a table here."""
        return any(self.find(table) is not None for table in TABLES.values())

    def open(self, table: LakeTable) -> DeltaTable:
        """The table's newest version. Creates the table if it does not exist."""
        found = self.find(table)
        if found is not None:
            return found
        with told(table):
            return DeltaTable.create(
                self.uri_of(table),
                table.arrow_schema(),
                # Another process may have created it just now.
                mode="ignore",
                partition_by=list(table.partitioned_by),
                name=table.name,
                description=table.about,
                configuration={
                    **SETTINGS,
                    # Without this, readers treat columns without statistics as null and skip their
                    # files.
                    "delta.dataSkippingStatsColumns": ",".join(table.ranged_by),
                },
                storage_options=self.storage,
            )

    def commit(self, table: LakeTable, files: Iterable[WrittenFile], entitled: Entitlement) -> bool:
        """Add the files to the table, and return False if that was done before.

        Raises:
            Unavailable: ``lake_busy``, ``lake_unreachable``.
            EscrowError: Any error that `entitled` raises.
        """
        actions = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=json.loads(file.partition),
                modification_time=file.modified_at_ms,
                data_change=True,
                stats=file.stats,
            )
            for file in files
        ]
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
            "other writers committed to the table at every try",
            table=table.name,
            tries=COMMIT_TRIES_MAX,
        )

    def append(self, table: LakeTable, rows: pa.RecordBatch, entitled: Entitlement) -> bool:
        """Write a few rows from the driver, and commit them."""
        self.open(table)
        with told(table):
            files = self.files(table)
            files.add(rows)
            written = files.finish()
        return self.commit(table, written, entitled)

    def read(self, spark: SparkSession, table: LakeTable) -> DataFrame:
        """The table as it is now. Later commits do not change the DataFrame."""
        found = self.find(table)
        paths = [] if found is None else pa.table(found.get_add_actions())["path"].to_pylist()
        if not paths:
            return spark.createDataFrame([], table.ddl())
        # With a schema, Spark need not open files. Under the base path, directories are columns.
        base = for_spark(self.uri_of(table))
        reader = spark.read.schema(table.ddl()).option("basePath", base)
        # Delta's log holds percent-encoded paths.
        frame = reader.parquet(*(f"{base}/{unquote(path)}" for path in paths))
        return frame.select(*table.arrow_schema().names)


@contextmanager
def told(table: LakeTable) -> Iterator[None]:
    """Turn errors of Delta and the file system into ours."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise Unavailable(
            "lake_unreachable",
            "the lake's storage failed",
            table=table.name,
            cause=str(error)[:500],
        ) from error
