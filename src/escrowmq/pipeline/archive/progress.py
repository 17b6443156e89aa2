"""Archives the progress of consumer groups: one row for each observed change.

Consumer groups leave no trace in the log, so brokers are asked, and their answer is compared with
the last one. The last one is in the table, so no other state is needed. If two drivers observe the
same change, the table accepts only one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from deltalake import DeltaTable, Transaction
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.lake.delta import Entitlement, Lake
from escrowmq.pipeline.lake.tables import PROGRESS
from escrowmq.protocol.native.requests import NativeCode

LOOKS = "escrowmq/progress/looks"
"""The app transaction that counts the commits."""

CHANGES_MAX = 100_000
"""The most rows of one commit. The rest waits for the next look."""


class GroupQueue(NamedTuple):
    """A consumer group in a queue of a broker."""

    broker: str
    consumer_group: str
    topic: str
    queue_id: int


class Change(NamedTuple):
    """A consumer group's offset has changed."""

    reader: GroupQueue
    #: None if the group was not seen before.
    before: int | None
    after: int
    seen_at_ms: int


class ProgressWatch:
    """Observes offsets and archives changes. Runs on the driver; keeps the last offsets."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._offsets: dict[GroupQueue, int] = {}
        #: The count of commits that these offsets belong to; None before the first look.
        self._look: int | None = None

    def look(self, brokers: Sequence[str]) -> int:
        """Archive the changes since the last look, and return the number of rows."""
        looks = self._lake.open(PROGRESS).transaction_version(LOOKS) or 0
        if looks != self._look:
            # This is the first look of this process, or another process has committed in between.
            self._offsets, self._look = self._told(), looks
        changes = [one for address in brokers for one in self._changes(address)][:CHANGES_MAX]
        if not changes:
            return 0
        rows = [
            {
                **change.reader._asdict(),
                "offset_before": change.before,
                "offset_after": change.after,
                "seen_at_ms": change.seen_at_ms,
            }
            for change in changes
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=PROGRESS.file_schema())
        if not self._lake.append(PROGRESS, batch, _after(looks)):
            return 0
        self._look = looks + 1
        self._offsets |= {change.reader: change.after for change in changes}
        return len(changes)

    def _told(self) -> dict[GroupQueue, int]:
        """The newest offsets in the table."""
        progress = self._lake.read(self._spark, PROGRESS)
        newest = F.max_by("offset_after", "seen_at_ms").alias("offset_after")
        by_reader = progress.groupBy(*GroupQueue._fields).agg(newest)
        return {GroupQueue(*row[:-1]): row[-1] for row in by_reader.collect()}

    def _changes(self, address: str) -> Iterator[Change]:
        with NativeCalls(address) as calls:
            broker = calls.call(NativeCode.STATUS).header.broker
            for page in calls.pages(NativeCode.LIST_OFFSETS):
                for row in page.rows:
                    reader = GroupQueue(broker, row.group, row.topic, row.queue_id)
                    before = self._offsets.get(reader)
                    if before != row.offset:
                        yield Change(reader, before, row.offset, page.header.now_ms)


def _after(looks: int) -> Entitlement:
    def ask(delta: DeltaTable) -> list[Transaction] | None:
        if (delta.transaction_version(LOOKS) or 0) != looks:
            return None
        return [Transaction(LOOKS, looks + 1)]

    return ask
