"""What a round of settle does about the sink's orphans, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.pipeline.facts import BROKER, PRODUCER_GROUP
from escrowmq.pipeline.sink_orphans import EVIDENCE, orphaned
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import ListTransactionsHeader
from escrowmq.protocol.own_rows import VerdictRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = "broker string, app_id string, query_id string, batch_number bigint, batch_name string"
COLUMNS = {
    "half_offset": "bigint",
    "transaction_id": "string",
    "producer_group": "string",
    "age_ms": "bigint",
    "state": "int",
    "checks_sent": "int",
}
ATTEMPTS = ", ".join(["broker string", *(f"{name} {kind}" for name, kind in COLUMNS.items())])


def roll_back_orphans(spark: SparkSession, address: str) -> list[str]:
    """Roll back what there is evidence against; the evidence, one for each, in order."""
    with OwnCalls(address) as calls:
        listed = calls.rows(OwnCode.LIST_TRANSACTIONS, ListTransactionsHeader(with_ids=True))
        undecided = [(address, *(getattr(one, name) for name in COLUMNS)) for one in listed]
        batches = [
            (address, one.app_id, one.query_id, one.batch_number, one.batch_name)
            for one in calls.rows(OwnCode.LIST_BATCHES)
        ]
        attempts = spark.createDataFrame(undecided, ATTEMPTS)
        is_attempt = attempts[PRODUCER_GROUP].startswith(GROUP_PREFIX)
        found = orphaned(attempts.where(is_attempt), spark.createDataFrame(batches, BATCHES))
        orphans = found.where(found[BROKER] == address).collect()
        verdicts = [
            VerdictRow(
                half_offset=one["half_offset"],
                verdict="rollback",
                state=one["state"],
                checks_sent=one["checks_sent"],
                reason=None,
            )
            for one in orphans
        ]
        outcomes = calls.call(OwnCode.OBEY_VERDICTS, rows=verdicts).rows
    assert {outcome.outcome for outcome in outcomes} <= {"rolled_back"}
    return sorted(one[EVIDENCE] for one in orphans)
