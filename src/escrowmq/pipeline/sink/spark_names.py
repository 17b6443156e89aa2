"""The query, batch and run of a task, as Spark reports them."""

from __future__ import annotations

from pyspark import TaskContext

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import BATCH_MARK, PLAIN_QUERY

# Spark's names for them. Its documentation does not list them, so a test checks them.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


def told_by_spark(name: str) -> str:
    """A property of the query that this task belongs to."""
    value = _property(name)
    if not value:
        raise RequestRefused(
            "query_unknown", "Spark did not report this property of the query", name=name
        )
    return value


def query_of_named_batch() -> str:
    """The query id of a write with a batch name: in ``foreachBatch``, Spark's query and batch.

    A repetition of that batch then has the same query id, and every other batch has another one.
    """
    query_id, batch = _property(QUERY_ID), _property(BATCH_ID)
    return f"{query_id}{BATCH_MARK}{batch}" if query_id and batch else PLAIN_QUERY


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
