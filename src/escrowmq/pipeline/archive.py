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
    EventStream,
    MessageStream,
)
from escrowmq.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    streams: list[ArchiveStream] = [
        kind(spark, tuple(brokers), lake, options) for kind in (MessageStream, EventStream)
    ]
    # Side by side: what takes time is to begin.
    queries = [stream.start(checkpoint_uri) for stream in streams]
    failures = []
    for stream, query in zip(streams, queries, strict=True):
        ...
