"""A stream of the archive: a Spark query that appends to one table of the lake.

Spark keeps the offsets, plans the batches and repeats them. Tasks read a batch and write it to
files, and the driver commits them. If either is killed in between, the files belong to no table,
and the batch runs again.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.pipeline.archive.claim import NO_BATCH, TableClaim, TableOwner, claim
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
"""How often a silent query is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Options of the archive: the topics and the batch sizes."""

    #: The topics, as a pattern for the whole name.
    topics: str = ".*"
    #: The most messages of a batch.
    rows_per_batch_max: int = 500_000
    #: The most bytes of each broker's log that one batch of events is read from.
    log_bytes_per_batch_max: int = 1024 * 1024 * 1024
    #: Whether the archive stops if retention deleted messages before they were archived.
    fails_on_loss: bool = False
    #: How long to wait for an unavailable broker.
    patience_ms: int = 30_000
    #: Options of the lake's storage for the deltalake package.
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Committed:
    """Rows and lag of the batches that a stream has committed."""

    #: Rows by table.
    rows: Counter[str] = field(default_factory=Counter)
    #: The greatest age of a row when it became available for queries.
    lag_ms: int = 0

    def add(self, files: Iterable[WrittenFile]) -> None:
        """Count the files of a batch that was just committed."""
        for file in files:
            self.rows[file.table] += file.row_count
            self.lag_ms = max(self.lag_ms, time.time_ns() // 1_000_000 - file.oldest_at_ms)


@dataclass(eq=False)
class ArchiveStream(ABC):
    """A stream into one table. Used on the driver, from one thread except for its batches."""

    table: ClassVar[LakeTable]

    _spark: SparkSession
    _brokers: tuple[str, ...]
    _lake: Lake
    _checkpoints: str
    _options: ArchiveOptions

    def __post_init__(self) -> None:
        self._checkpoint = f"{absolute(self._checkpoints)}/{self.table.name}"
        self._query: StreamingQuery | None = None
        self._reader: DataSourceStreamReader | None = None
        # Shared with the thread that runs the batches.
        self._news = threading.Condition()
        self._committed = Committed()
        #: The archived offsets, in the checkpoint's format.
        self._position: dict[str, Any] = {}
        #: The error of a batch. Spark passes it on only as text.
        self._error: Exception | None = None

    # The parts that differ between streams.

    @abstractmethod
    def _source_options(self, starting: str) -> dict[str, str]:
        """The options of the source."""

    @abstractmethod
    def _write(self, owner: TableClaim, batch: Batch) -> list[WrittenFile]:
        """Write and commit a batch that is not committed yet. Return the committed files."""

    @abstractmethod
    def _take_over(self, place: TableOwner) -> str:
        """Where the stream begins after another owner.

        Must change nothing: that owner may be alive.
        """

    def _clean_up(self, owner: TableClaim) -> None:  # noqa: B027 -- most streams leave nothing behind
        """Remove rows of former owners' batches that these can no longer commit."""

    # The life cycle.

    def start(self, trigger: Mapping[str, Any]) -> None:
        """Start the query unless it is running.

        `trigger` is Spark's, such as ``availableNow=True``.
        """
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
            # Spark never evaluates the rows of this DataFrame.
            source.writeStream.foreachBatch(lambda _rows, batch: self._run(owner, batch))
            .option("checkpointLocation", for_spark(self._checkpoint))
            .queryName(f"archive_{self.table.name}")
            .trigger(**trigger)
            .start()
        )

    def stop(self) -> None:
        """Stop the query. The next start repeats uncommitted batches."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def finish(self) -> None:
        """Wait for the end of an ``availableNow`` query.

        Raises:
            EscrowError: The error that ended it early.
        """
        from pyspark.errors import StreamingQueryException

        assert self._query is not None
        try:
            self._query.awaitTermination()
        except StreamingQueryException:
            self._raise_what_ended_it()

    def catch_up(self, until_s: float) -> bool:
        """Wait for the current data, until this time of the monotonic clock.

        Return whether it arrived.

        Raises:
            EscrowError: The error that ended the query.
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
        """Return what was committed since the last call."""
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

    def _run(self, owner: TableClaim, batch: int) -> None:
        """Run one batch. Spark calls this in its own thread."""
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

    def _planned(self, owner: TableClaim, batch: int) -> Batch:
        assert self._reader is not None
        start = owner.planned(batch - 1) if batch else self._reader.initialOffset()
        end = owner.planned(batch)
        parts = self._reader.partitions(start, end)
        marks = moved(places(start), places(end))
        return Batch(batch, self._reader, parts, marks, forks_between(start, end))


def has_reached(position: Kept, target: Kept) -> bool:
    """Whether all offsets of `target` are reached, in the histories that they belong to."""
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
