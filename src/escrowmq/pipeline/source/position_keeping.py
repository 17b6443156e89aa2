"""Stream readers for Spark 4.0 and 4.1, which tell a reader neither its start nor its limit.

These versions call ``latestOffset()`` without arguments. On both of them the calls come in one of
two orders, which tests/spark/test_old_stream_api.py verifies:

* a new query: ``latestOffset``, ``initialOffset``, ``partitions(initial, end)``;
* a query with a checkpoint: ``partitions(at, at)``, then ``latestOffset``.

So a reader that keeps the last offset it planned or returned knows where each batch starts, and can
limit it. It cannot know the trigger: with ``availableNow`` these versions run exactly one batch,
whatever it holds. A limit would then end the query early and silently. Therefore the user must say
which trigger the query has (option ``availableNow``) before a limit is applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.spark_api import HAS_READ_LIMITS, ReadAllAvailable, ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

Offsets = dict[str, Any]
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class LimitedReader(Protocol):
    """A reader with the interface of Spark 4.2."""

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """Where a new query begins."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit that the options give."""

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's
        """Where the batch from `start` ends."""

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""


def for_this_spark(
    reader: DataSourceStreamReader,
    *,
    available_now: bool | None,
    limit_option: str,
    is_limit_given: bool,
) -> DataSourceStreamReader:
    """Return `reader`, or on Spark 4.0 and 4.1 a wrapper that keeps its position.

    Raises:
        RequestRefused: ``bad_option``, for a limit on these versions without the option
            availableNow.
    """
    if HAS_READ_LIMITS:
        return reader
    return keeping(
        reader,
        available_now=available_now,
        limit_option=limit_option,
        is_limit_given=is_limit_given,
    )


def keeping(
    reader: LimitedReader, *, available_now: bool | None, limit_option: str, is_limit_given: bool
) -> PositionKeepingReader:
    """Wrap a reader for Spark 4.0 and 4.1."""
    if is_limit_given and available_now is None:
        raise bad_option(
            "availableNow",
            f"set it to true or false with {limit_option}, because Spark 4.0 and 4.1 do not tell a "
            "source its trigger: false keeps the limit; true reads all current data in one batch",
        )
    limit = reader.getDefaultReadLimit() if available_now is False else ReadAllAvailable()
    return PositionKeepingReader(reader, limit)


def not_addressed(broker: str) -> RequestRefused:
    """The error for a query that continues without one of its brokers."""
    return bad_option("broker", f"add the address of {broker}: this query has already read from it")


class PositionKeepingReader(DataSourceStreamReader):
    """Passes a reader the start and the limit that Spark does not pass on."""

    def __init__(self, reader: LimitedReader, limit: ReadLimit) -> None:
        self._reader = reader
        self._limit = limit
        self._initial: Offsets | None = None
        #: The end of the last planned batch; None before the first.
        self._position: Offsets | None = None
        #: Whether the position is a guess: a query counts as new until Spark shows otherwise.
        self._is_guess = False

    # On the driver, in one process while the query runs.

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """Where a new query begins.

        Each call returns the same value, because ends were counted from it.
        """
        if self._initial is None:
            # In the form in which Spark returns it: its JSON has no tuples and no numeric keys.
            self._initial = json.loads(json.dumps(self._reader.initialOffset()))
        assert self._initial is not None
        return self._initial

    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802 - Spark 4.0's
        """Where the next batch ends."""
        if self._position is None:
            self._position = self.initialOffset()
            self._is_guess = True
        # Kept even if Spark plans no task for it, for example for a query that needs no rows.
        self._position = self._reader.latestOffset(self._position, self._limit)
        return self._position

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch. Spark passes two equal offsets to tell where a query stands."""
        if self._is_guess and start != self._initial:
            self._check_guess(start)
        for broker in start.keys() - end.keys():
            raise not_addressed(broker)
        self._is_guess = False
        self._position = end
        return self._reader.partitions(start, end)

    def _check_guess(self, start: Offsets) -> None:
        """Check for losses now: Spark asked for the end first, but has a checkpoint."""
        if not isinstance(self._limit, ReadAllAvailable):
            raise bad_option(
                "availableNow", f"must be true here, unless {WRAPPER} is false", "false"
            )
        self._reader.latestOffset(start, self._limit)

    def commit(self, end: Offsets) -> None:
        """Do nothing: the reader holds no resources for a batch."""

    # On an executor.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._reader.read(partition)
