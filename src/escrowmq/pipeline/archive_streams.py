"""The archive's two streams: topics, and what happened to transactions.

Each has a checkpoint and a table of its own.  A batch is read, written to files by the tasks, and
committed by the driver: whoever is killed in between leaves files that belong to nobody, and the
batch is run again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalake import DeltaTable, Transaction
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.archive_claim import Claim, Place, claim
from escrowmq.pipeline.archive_tasks import (
    MESSAGE_COLUMNS,
    Target,
    WriteMessages,
    WriteRows,
    written_by,
)
from escrowmq.pipeline.facts import BROKER, BROKER_NAME
from escrowmq.pipeline.lake import Entitlement, Lake
from escrowmq.pipeline.lake_files import WrittenFile
from escrowmq.pipeline.lake_tables import MESSAGES, QUARANTINE, TRANSACTIONS, LakeTable
from escrowmq.pipeline.storage import absolute, for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What is archived, and in which portions."""

    #: Topics, by a pattern for the whole name.
    topics: str = ".*"
    #: A batch has at most so many messages.
    rows_per_batch_max: int = 500_000
    #: A batch of events is read from so much of each broker's log, at most.
    log_bytes_per_batch_max: int = 1024 * 1024 * 1024
    #: Whether messages that retention deleted before they were archived stop the archive.
    fails_on_loss: bool = False
    #: Options of the lake's storage, as the deltalake package takes them.
    storage: Mapping[str, str] = field(default_factory=dict)


class ArchiveStream:
    """A stream into one table.  On the driver; a run of it is one query."""

    table: LakeTable

    def __init__(
        self, spark: SparkSession, brokers: tuple[str, ...], lake: Lake, options: ArchiveOptions
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._lake = lake
        self._options = options
        #: What this run has committed, by table.
        self.rows: Counter[str] = Counter()
        #: The oldest row of them.
        self.oldest_at_ms: int | None = None
        #: What went wrong in a batch; Spark tells it as text only.
        self.error: Exception | None = None

    def start(self, checkpoints: str) -> StreamingQuery:
        """Begin to archive what is there now."""
        checkpoint = f"{absolute(checkpoints)}/{self.table.name}"
        owner = claim(self._lake, self.table, checkpoint, self._options.storage, self._take_over)
        self.rows, self.oldest_at_ms, self.error = Counter(), None, None

        def run(frame: DataFrame, batch: int) -> None:
            try:
                self._run(owner, frame, batch)
            except Exception as error:
                self.error = error
                raise

        return (
            self._frame(owner.starting)
            .writeStream.foreachBatch(run)
            .option("checkpointLocation", for_spark(checkpoint))
            .queryName(f"archive {self.table.name}")
            .trigger(availableNow=True)
            .start()
        )

    def _take_over(self, place: Place) -> str:
        """Where a stream begins after an owner that is gone; clean up behind it."""
        raise NotImplementedError

    def _frame(self, starting: str) -> DataFrame:
        raise NotImplementedError

    def _run(self, owner: Claim, frame: DataFrame, batch: int) -> None:
        raise NotImplementedError

    def _count(self, files: list[WrittenFile]) -> None:
        for file in files:
            self.rows[file.table] += file.row_count
            self.oldest_at_ms = min(self.oldest_at_ms or file.oldest_at_ms, file.oldest_at_ms)


class MessageStream(ArchiveStream):
    """Topics into ``messages``, and into ``quarantine``."""

    table = MESSAGES

    def _frame(self, starting: str) -> DataFrame:
        reader = self._spark.readStream.format("escrowmq")
        options = {
            "broker": ",".join(self._brokers),
            "topicPattern": self._options.topics,
            "startingOffsets": starting,
            "maxRowsPerBatch": self._options.rows_per_batch_max,
            "failOnDataLoss": self._options.fails_on_loss,
            "columns": ",".join(MESSAGE_COLUMNS),
        }
        return reader.options(**options).load()

    def _run(self, owner: Claim, frame: DataFrame, batch: int) -> None:
        entitled = owner.entitled(batch)
        if entitled(self._lake.open(MESSAGES)) is None:
            return
        self._lake.open(QUARANTINE)
        task = WriteMessages(
            Target.of(self._lake, MESSAGES),
            Target.of(self._lake, QUARANTINE),
            owner.archive_id,
            batch,
        )
        files = written_by(frame, task)
        poisonous = [file for file in files if file.table == QUARANTINE.name]
        # First: once the messages are there, nobody comes back for this batch.
        if poisonous:
            self._lake.commit(QUARANTINE, poisonous, _once(f"{owner.archive_id}", batch))
        good = [file for file in files if file.table == MESSAGES.name]
        if self._lake.commit(MESSAGES, good, entitled):
            self._count(files)

    def _take_over(self, place: Place) -> str:
        quarantine = self._lake.find(QUARANTINE)
        if quarantine is not None:
            # Of a batch that was killed between its two commits: it will come again.
            quarantine.delete(f"archive_id = {place.owner} AND batch > {place.batch}")
        queue = ("broker", "topic", "queue_id")
        there = [
            self._lake.read(self._spark, table).select(*queue, "queue_offset")
            for table in (MESSAGES, QUARANTINE)
        ]
        last = F.max("queue_offset").alias("last")
        ends = there[0].unionByName(there[1]).groupBy(*queue).agg(last)
        starts: dict[str, dict[str, dict[int, int]]] = {}
        for row in ends.collect():
            topics = starts.setdefault(row.broker, {})
            topics.setdefault(row.topic, {})[row.queue_id] = row.last + 1
        return json.dumps(starts)


class EventStream(ArchiveStream):
    """What happened to transactions, into ``transactions``."""

    table = TRANSACTIONS

    def _frame(self, starting: str) -> DataFrame:
        reader = self._spark.readStream.format("escrowmq")
        options = {
            "view": "events",
            "broker": ",".join(self._brokers),
            "startingOffsets": starting,
            "maxBytesPerBatch": self._options.log_bytes_per_batch_max,
            "failOnDataLoss": self._options.fails_on_loss,
        }
        events = reader.options(**options).load()
        # An address may change; a name stays.
        return events.withColumn(BROKER, F.col(BROKER_NAME)).select(*TRANSACTIONS.columns)

    def _run(self, owner: Claim, frame: DataFrame, batch: int) -> None:
        entitled = owner.entitled(batch)
        if entitled(self._lake.open(TRANSACTIONS)) is None:
            return
        files = written_by(frame, WriteRows(Target.of(self._lake, TRANSACTIONS)))
        if self._lake.commit(TRANSACTIONS, files, entitled):
            self._count(files)

    def _take_over(self, _place: Place) -> str:
        events = self._lake.read(self._spark, TRANSACTIONS)
        ends = events.groupBy("broker").agg(F.max("log_offset").alias("last"))
        # All that happened at one place of the log was in one batch.
        return json.dumps({row.broker: row.last + 1 for row in ends.collect()})


def _once(app: str, batch: int) -> Entitlement:
    def ask(delta: DeltaTable) -> list[Transaction] | None:
        last = delta.transaction_version(app)
        return None if last is not None and last >= batch else [Transaction(app, batch)]

    return ask
