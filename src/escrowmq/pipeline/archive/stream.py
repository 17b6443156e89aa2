"""A stream of the archive: a query of Spark's that appends to one table of the lake.

Spark keeps the offsets, plans the batches and repeats them.  A batch is read and written to files
by the tasks, and committed by the driver: whoever is killed in between leaves files that belong to
nobody, and the batch is run again.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.pipeline.archive.claim import NO_BATCH, Claim, Place, claim
from escrowmq.pipeline.archive.tasks import Batch
from escrowmq.pipeline.data_source import EscrowSource
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import WrittenFile
from escrowmq.pipeline.lake.marks import begin_marks, moved
from escrowmq.pipeline.lake.storage import absolute, for_spark
from escrowmq.pipeline.lake.tables import LakeTable
from escrowmq.pipeline.source.positions import Kept, forks_between, places, position_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.streaming.query import StreamingQuery

CAUSE_CHARACTERS_MAX = 1_000
LOOK_S = 0.5
"""So often a query is looked at that nothing is heard of."""


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
    #: So long a broker that is away is waited for.
    patience_ms: int = 30_000
    #: Options of the lake's storage, as the deltalake package takes them.
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Committed:
    """What a stream has committed."""

    #: Rows by table.
    rows: Counter[str] = field(default_factory=Counter)
    #: How old the oldest of them was at most when it could be queried.
    lag_ms: int = 0

    def add(self, files: Iterable[WrittenFile]) -> None:
        """Count a batch, which is committed just now."""
        for file in files:
            self.rows[file.table] += file.row_count
            self.lag_ms = max(self.lag_ms, time.time_ns() // 1_000_000 - file.oldest_at_ms)


class ArchiveStream(ABC):
    """A stream into one table.  On the driver; all but its batches in one thread."""

    table: LakeTable

    def __init__(
        self,
        spark: SparkSession,
        brokers: tuple[str, ...],
        lake: Lake,
        checkpoints: str,
        options: ArchiveOptions,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._lake = lake
        self._options = options
        self._checkpoint = f"{absolute(checkpoints)}/{self.table.name}"
        self._query: StreamingQuery | None = None
        self._reader: DataSourceStreamReader | None = None
        # Shared with the thread that runs the batches.
        self._news = threading.Condition()
        self._committed = Committed()
        #: The offsets that are archived, as the checkpoint has them.
        self._position: dict[str, Any] = {}
        #: What went wrong in a batch; Spark tells it as text only.
        self._error: Exception | None = None

    # What is different for each.

    @abstractmethod
    def _source_options(self, starting: str) -> dict[str, str]:
        """How the source is read."""

    @abstractmethod
    def _write(self, owner: Claim, batch: Batch) -> list[WrittenFile]:
        """Write and commit a batch that is not committed yet; what it committed."""

    @abstractmethod
    def _take_over(self, place: Place) -> str:
        """Where a stream begins after another owner, which may be alive; change nothing."""

    def _clean_up(self, owner: Claim) -> None:  # noqa: B027 -- most leave nothing behind
        """Remove what former owners left of batches that they can no longer commit."""

    # Its life.

    def start(self, trigger: Mapping[str, Any]) -> None:
        """Be running.  `trigger` says how: Spark's words, as ``availableNow=True``."""
        if self._query is not None and self._query.isActive:
            return
        storage = self._options.storage
        owner = claim(self._lake, self.table, self._checkpoint, storage, self._take_over)
        batch = owner.place(self._lake.open(self.table)).batch
        if batch == NO_BATCH and owner.after is not None:
            self._clean_up(owner)
        options = self._source_options(owner.starting)
        self._error = None
        self._reader = EscrowSource(options).streamReader(EscrowSource(options).schema())
        self._position = self._reader.initialOffset() if batch == NO_BATCH else owner.planned(batch)
        begin_marks(self._lake, self.table, places(self._position))
        source = self._spark.readStream.format("escrowmq").options(**options).load()
        self._query = (
            # The rows as Spark would read them are never asked for.
            source.writeStream.foreachBatch(lambda _rows, batch: self._run(owner, batch))
            .option("checkpointLocation", for_spark(self._checkpoint))
            .queryName(f"archive_{self.table.name}")
            .trigger(**trigger)
            .start()
        )

    def stop(self) -> None:
        """Be running no more; what a batch has not committed is done by the next start."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def finish(self) -> None:
        """Wait for the end of a query that takes what is available now.

        Raises:
            EscrowError: what ended it before.
        """
        from pyspark.errors import StreamingQueryException

        assert self._query is not None
        try:
            self._query.awaitTermination()
        except StreamingQueryException:
            self._raise_what_ended_it()

    def catch_up(self, until_s: float) -> bool:
        """Wait for all that is there now, until this time of the monotonic clock; whether it came.

        Raises:
            EscrowError: what ended the query.
        """
        from escrowmq.pipeline.spark_api import ReadAllAvailable

        assert self._reader is not None
        with self._news:
            target = self._reader.latestOffset(self._position, ReadAllAvailable())
            while not has_reached(self._position, target):
                self._raise_what_ended_it()
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._news.wait(min(left_s, LOOK_S))
        return True

    def take_committed(self) -> Committed:
        """What was committed since it was last taken."""
        with self._news:
            committed, self._committed = self._committed, Committed()
        return committed

    def _raise_what_ended_it(self) -> None:
        assert self._query is not None
        ended = self._query.exception()
        if ended is None:
            return
        if isinstance(self._error, EscrowError):
            raise self._error
        cause = str(self._error or ended)[:CAUSE_CHARACTERS_MAX]
        raise Unavailable("archive_failed", "see cause", table=self.table.name, cause=cause)

    def _run(self, owner: Claim, batch: int) -> None:
        """One batch; called by Spark, in a thread of its own."""
        try:
            entitled = owner.entitled(batch)
            is_new = entitled(self._lake.open(self.table)) is not None
            files = self._write(owner, self._planned(owner, batch)) if is_new else []
        except Exception as error:
            self._error = error
            raise
        with self._news:
            self._committed.add(files)
            self._position = owner.planned(batch)
            self._news.notify_all()

    def _planned(self, owner: Claim, batch: int) -> Batch:
        assert self._reader is not None
        start = owner.planned(batch - 1) if batch else self._reader.initialOffset()
        end = owner.planned(batch)
        parts = self._reader.partitions(start, end)
        marks = moved(places(start), places(end))
        return Batch(batch, self._reader, parts, marks, forks_between(start, end))


def has_reached(position: Kept, target: Kept) -> bool:
    """Whether all offsets of `target` are reached, in the histories that it is of."""
    return all(
        position_of(position.get(broker)).history == position_of(one).history
        and position_of(position.get(broker)).born == position_of(one).born
        and covers({broker: position_of(position.get(broker)).at}, {broker: position_of(one).at})
        for broker, one in target.items()
    )


def covers(position: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Whether all offsets of `target` are reached."""
    return all(
        covers(position.get(name, {}), end)
        if isinstance(end, Mapping)
        else position.get(name, 0) >= end
        for name, end in target.items()
    )
