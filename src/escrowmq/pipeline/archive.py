"""The archive: topics and the life lines of transactions into the lake, exactly once.

A run takes what is there when it begins, and ends.  Between two runs nothing is kept but the
checkpoints and the tables themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.pipeline.archive_streams import (
    ArchiveOptions,
    ArchiveStream,
    MessageStream,
)
from escrowmq.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CAUSE_CHARACTERS_MAX = 1_000
STREAMS = (MessageStream,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """What a run has done."""

    #: Rows that it committed, by table.
    rows: Mapping[str, int]
    #: How old the oldest of them was when they could be queried; 0 if there was none.
    lag_ms: int
    took_ms: int


def archive_once(
    spark: SparkSession,
    brokers: Sequence[str],
    lake_uri: str,
    checkpoint_uri: str,
    options: ArchiveOptions | None = None,
) -> ArchiveSummary:
    """Archive what is there now; on the driver, one at a time.

    Raises:
        RequestRefused: ``archive_superseded`` and the like: a checkpoint and the lake are apart.
        Unavailable: ``archive_failed``, or what failed; the next run goes on from there.
    """
    begun = time.monotonic()
    options = options or ArchiveOptions()
    lake = Lake(lake_uri, options.storage)
    streams: list[ArchiveStream] = [kind(spark, tuple(brokers), lake, options) for kind in STREAMS]
    failures = _run(streams, checkpoint_uri)
    if failures:
        raise failures[0]
    rows: Counter[str] = sum((stream.rows for stream in streams), Counter())
    oldest = [stream.oldest_at_ms for stream in streams if stream.oldest_at_ms is not None]
    return ArchiveSummary(
        rows=dict(rows),
        lag_ms=max(0, time.time_ns() // 1_000_000 - min(oldest)) if oldest else 0,
        took_ms=int((time.monotonic() - begun) * 1_000),
    )


def _run(streams: Sequence[ArchiveStream], checkpoints: str) -> list[EscrowError]:
    """Run them side by side, each to its end, whatever becomes of the others."""
    from pyspark.errors import StreamingQueryException

    failures: list[EscrowError] = []
    running: list[tuple[ArchiveStream, StreamingQuery]] = []
    try:
        for stream in streams:
            try:
                running.append((stream, stream.start(checkpoints)))
            except EscrowError as error:
                failures.append(error)
        for stream, query in running:
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                failures.append(_failure(stream, error))
    finally:
        # Nothing, unless we are being interrupted.
        for _, query in running:
            query.stop()
    return failures


def _failure(stream: ArchiveStream, error: Exception) -> EscrowError:
    if isinstance(stream.error, EscrowError):
        return stream.error
    cause = str(stream.error or error)[:CAUSE_CHARACTERS_MAX]
    return Unavailable("archive_failed", "see cause", table=stream.table.name, cause=cause)
