"""What happened to transactions, as the archive takes it into the lake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.archive_claim import Claim, Place
from escrowmq.pipeline.archive_stream import ArchiveStream
from escrowmq.pipeline.archive_tasks import Target, WriteRows, written_by
from escrowmq.pipeline.facts import BROKER, BROKER_NAME, LOG_OFFSET
from escrowmq.pipeline.lake_files import WrittenFile
from escrowmq.pipeline.lake_tables import TRANSACTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EventStream(ArchiveStream):
    """The life lines into ``transactions``."""

    table = TRANSACTIONS

    def _source_options(self, starting: str) -> dict[str, str]:
        return {
            "view": "events",
            "broker": ",".join(self._brokers),
            "startingOffsets": starting,
            "maxBytesPerBatch": str(self._options.log_bytes_per_batch_max),
            "failOnDataLoss": str(self._options.fails_on_loss).lower(),
        }

    def _rows(self, source: DataFrame) -> DataFrame:
        # An address may change; a name stays.
        return source.withColumn(BROKER, F.col(BROKER_NAME)).select(*TRANSACTIONS.columns)

    def _write(self, owner: Claim, rows: DataFrame, batch: int) -> list[WrittenFile]:
        files = written_by(rows, WriteRows(Target.of(self._lake, TRANSACTIONS)))
        is_new = self._lake.commit(TRANSACTIONS, files, owner.entitled(batch))
        return files if is_new else []

    def _take_over(self, _place: Place) -> str:
        events = self._lake.read(self._spark, TRANSACTIONS)
        ends = events.groupBy(BROKER).agg(F.max(LOG_OFFSET).alias("last")).collect()
        # All that one place of the log says is in one batch.
        return json.dumps({row[BROKER]: row["last"] + 1 for row in ends})
