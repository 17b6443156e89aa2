"""The archive: topics and the life lines of transactions to the lake, exactly once.

``archive_once`` archives the current data and ends. A service keeps an ``Archive``, whose streams
stay between its runs, because starting them costs more than a batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.archive.events import EventStream
from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.archive.progress import ProgressWatch
from escrowmq.pipeline.archive.stream import ArchiveOptions, ArchiveStream
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import PROGRESS, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_log(__name__)

STREAMS = (MessageStream, EventStream)
INTERVAL_MS = 10_000
RUN_S_MAX = 60.0
"""How long a run waits for its streams. They continue after it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """What was archived since the last run."""

    #: Rows by table.
    rows: Mapping[str, int]
    #: The greatest age of a message or event when it became available for queries.
    lag_ms: int
    #: Whether everything is archived that existed when the run began.
    is_complete: bool
    took_ms: int


class Archive:
    """Archives repeatedly. Runs on the driver, in one thread."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: Sequence[str],
        lake_uri: str,
        checkpoint_uri: str,
        options: ArchiveOptions | None = None,
        *,
        interval_ms: int = INTERVAL_MS,
        kinds: Sequence[type[ArchiveStream]] = STREAMS,
    ) -> None:
        if isinstance(brokers, str):
            # Otherwise each of its letters would be taken for an address.
            text = "a list of addresses, each host:port"
            raise RequestRefused("bad_option", text, option="brokers", value=brokers)
        options = options or ArchiveOptions()
        self._brokers = tuple(brokers)
        self._lake = Lake(lake_uri, options.storage)
        self._interval_ms = interval_ms
        self._streams: list[ArchiveStream] = [
            kind(spark, self._brokers, self._lake, checkpoint_uri, options) for kind in kinds
        ]
        self._progress = ProgressWatch(spark, self._lake)

    def once(self) -> ArchiveSummary:
        """Archive the current data, and let the streams end.

        Raises:
            RequestRefused: ``archive_superseded`` and similar, if checkpoint and lake do not match.
            Unavailable: ``archive_failed``, or the error that caused it. The next run continues
                from there.
        """

        def finish(stream: ArchiveStream) -> bool:
            stream.finish()
            return True

        try:
            return self._summary({"availableNow": True}, finish)
        finally:
            self.rest()

    def run(self) -> ArchiveSummary:
        """Archive the current data. The streams continue.

        They archive new data once per interval. Raises the same errors as ``once``. The next run
        restarts a stream that ended.
        """
        until_s = time.monotonic() + RUN_S_MAX
        every = f"{self._interval_ms} milliseconds"
        return self._summary({"processingTime": every}, lambda stream: stream.catch_up(until_s))

    def rest(self) -> None:
        """Stop the streams and free their memory. The next run starts them again."""
        for stream in self._streams:
            stream.stop()

    def _summary(
        self, trigger: Mapping[str, Any], wait: Callable[[ArchiveStream], bool]
    ) -> ArchiveSummary:
        begun = time.monotonic()
        failures: list[EscrowError] = []
        running = []
        is_complete = True
        # All streams start before the first wait, and a failed one does not stop the others.
        for stream in self._streams:
            try:
                stream.start(trigger)
                running.append(stream)
            except EscrowError as error:
                failures.append(error)
        for stream in running:
            try:
                is_complete &= wait(stream)
            except EscrowError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        seen = self._progress.look(self._brokers)
        committed = [stream.take_committed() for stream in self._streams]
        rows = sum((each.rows for each in committed), Counter({PROGRESS.name: seen}))
        summary = ArchiveSummary(
            rows={name: count for name, count in rows.items() if count},
            lag_ms=max(each.lag_ms for each in committed),
            is_complete=is_complete,
            took_ms=int((time.monotonic() - begun) * 1_000),
        )
        log.info("archive_done", extra=asdict(summary))
        if quarantined := rows[QUARANTINE.name]:
            log.warning("messages_quarantined", extra={"message_count": quarantined})
        return summary


def archive_once(
    spark: SparkSession,
    brokers: Sequence[str],
    lake_uri: str,
    checkpoint_uri: str,
    options: ArchiveOptions | None = None,
) -> ArchiveSummary:
    """Archive the current data, on the driver. Raises the same errors as ``Archive.once``."""
    return Archive(spark, brokers, lake_uri, checkpoint_uri, options).once()
