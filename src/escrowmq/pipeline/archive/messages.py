"""The archive stream of topics."""

from __future__ import annotations

import json

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.archive.claim import TableClaim, TableOwner, last_batch
from escrowmq.pipeline.archive.stream import ArchiveStream
from escrowmq.pipeline.archive.tasks import (
    MESSAGE_COLUMNS,
    Batch,
    WriteMessages,
    written_by,
)
from escrowmq.pipeline.lake.delta import Entitlement, told
from escrowmq.pipeline.lake.files import WrittenFile
from escrowmq.pipeline.lake.marks import (
    fork_marks,
    forks_of,
    is_marked,
    marked_end,
    once,
    with_marks,
)
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE
from escrowmq.pipeline.source.message_reading import RangesPartition

CLOSED = 2**62
"""A batch number that closes the quarantine for a former owner, which can then commit no more."""


class MessageStream(ArchiveStream):
    """Archives topics to ``messages``, and messages with a problem to ``quarantine``."""

    table = MESSAGES

    def _source_options(self, starting: str) -> dict[str, str]:
        return {
            "broker": ",".join(self._brokers),
            "topicPattern": self._options.topics,
            "startingOffsets": starting,
            "maxRowsPerBatch": str(self._options.rows_per_batch_max),
            "failOnDataLoss": str(self._options.fails_on_loss).lower(),
            "columns": ",".join(MESSAGE_COLUMNS),
            "retryMs": str(self._options.patience_ms),
        }

    def _write(self, owner: TableClaim, batch: Batch) -> list[WrittenFile]:
        self._lake.open(QUARANTINE)
        names = {part.broker_name for part in batch.parts if isinstance(part, RangesPartition)}
        forks = forks_of(self._lake.open(MESSAGES), names | batch.forks.keys(), batch.forks)
        task = WriteMessages(self._lake, owner.archive_id, batch.number, forks)
        files = written_by(self._spark, batch, task)
        poison = [file for file in files if file.table == QUARANTINE.name]
        # Quarantine first: once the messages are committed, this batch does not run again.
        if poison:
            self._lake.commit(QUARANTINE, poison, _once(owner.archive_id, batch.number))
        good = [file for file in files if file.table == MESSAGES.name]
        new_forks = fork_marks({broker: forks[broker] for broker in batch.forks})
        entitled = with_marks(owner.entitled(batch.number), [*batch.marks, *new_forks])
        return files if self._lake.commit(MESSAGES, good, entitled) else []

    def _take_over(self, _place: TableOwner) -> str:
        queue = ("broker", "topic", "queue_id")
        messages = self._lake.open(MESSAGES)
        good = self._lake.read(self._spark, MESSAGES)
        poison = self._lake.read(self._spark, QUARANTINE)
        for archive_id, batch in self._last_batches().items():
            # Skip rows of a batch that was killed between its two commits. It will run again.
            poison = poison.where(f"archive_id != {archive_id} OR batch <= {batch}")
        both = good.select(*queue, "queue_offset").unionByName(
            poison.select(*queue, "queue_offset")
        )
        ends = both.groupBy(*queue).agg(F.max("queue_offset").alias("last"))
        starts: dict[str, dict[str, dict[int, int]]] = {}
        for row in ends.collect():
            topics = starts.setdefault(row.broker, {})
            end = row.last + 1
            if is_marked(messages):
                # For a restored broker, the lake may hold higher offsets of another history.
                end = marked_end(messages, row.broker, row.topic, row.queue_id)
            topics.setdefault(row.topic, {})[row.queue_id] = end
        return json.dumps(starts)

    def _clean_up(self, owner: TableClaim) -> None:
        assert owner.after is not None, "it has a predecessor"
        last_batches = {owner.after.owner: owner.after.batch, **self._last_batches()}
        last_batches.pop(owner.archive_id, None)
        for archive_id, batch in last_batches.items():
            # Close first, so that a former owner that still runs adds nothing after the deletion.
            self._lake.commit(QUARANTINE, (), _once(archive_id, CLOSED))
            with told(QUARANTINE):
                left = f"archive_id = {archive_id} AND batch > {batch}"
                self._lake.open(QUARANTINE).delete(left)

    def _last_batches(self) -> dict[int, int]:
        """The last committed batch of each owner that has rows in the quarantine."""
        messages = self._lake.open(MESSAGES)
        owners = self._lake.read(self._spark, QUARANTINE).select("archive_id").distinct().collect()
        found = {row.archive_id: last_batch(messages, row.archive_id) for row in owners}
        return {archive_id: batch for archive_id, batch in found.items() if batch is not None}


def _once(archive_id: int, batch: int) -> Entitlement:
    """Add a batch of this owner to the quarantine once. The table of messages decides the owner."""
    return once(f"escrowmq/quarantine/{archive_id}", batch)
