"""The archive stream of transaction events."""

from __future__ import annotations

import json

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.archive.claim import TableClaim, TableOwner
from escrowmq.pipeline.archive.stream import ArchiveStream
from escrowmq.pipeline.archive.tasks import EVENT_COLUMNS, Batch, WriteEvents, written_by
from escrowmq.pipeline.lake.files import WrittenFile
from escrowmq.pipeline.lake.marks import is_marked, marked_end, with_marks
from escrowmq.pipeline.lake.tables import TRANSACTIONS
from escrowmq.pipeline.views.facts import BROKER, LOG_OFFSET


class EventStream(ArchiveStream):
    """Archives life lines to ``transactions``."""

    table = TRANSACTIONS

    def _source_options(self, starting: str) -> dict[str, str]:
        return {
            "view": "events",
            "broker": ",".join(self._brokers),
            "startingOffsets": starting,
            "maxBytesPerBatch": str(self._options.log_bytes_per_batch_max),
            "failOnDataLoss": str(self._options.fails_on_loss).lower(),
            "columns": ",".join(EVENT_COLUMNS),
        }

    def _write(self, owner: TableClaim, batch: Batch) -> list[WrittenFile]:
        files = written_by(self._spark, batch, WriteEvents(self._lake))
        entitled = with_marks(owner.entitled(batch.number), batch.marks)
        return files if self._lake.commit(TRANSACTIONS, files, entitled) else []

    def _take_over(self, _place: TableOwner) -> str:
        events = self._lake.read(self._spark, TRANSACTIONS)
        ends = events.groupBy(BROKER).agg(F.max(LOG_OFFSET).alias("last")).collect()
        starts = {row[BROKER]: row["last"] + 1 for row in ends}
        delta = self._lake.open(TRANSACTIONS)
        if is_marked(delta):
            # For a restored broker, the lake may hold higher offsets of another history.
            starts = {broker: marked_end(delta, broker) for broker in starts}
        # All events at one log offset are in one batch, so the next offset is a safe start.
        return json.dumps(starts)
