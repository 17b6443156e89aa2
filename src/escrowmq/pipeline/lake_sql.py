"""The lake in SQL: its tables and one view, under their names.

The view's text is plain enough for Spark and for DuckDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.pipeline.lake import Lake
from escrowmq.pipeline.lake_tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "transaction_summary"

SUMMARY_SQL = """
WITH life AS (
  SELECT
    t.broker,
    t.head,
    max(t.transaction_id) AS transaction_id,
    max(t.producer_group) AS producer_group,
    max(t.ledger) AS ledger,
    sum(CASE WHEN t.event = 'held' THEN t.message_count END) AS message_count,
    min(CASE WHEN t.event = 'held' THEN t.at_ms END) AS held_at_ms,
    count(CASE WHEN t.event = 'asked' THEN 1 END) AS checks_asked,
    count(CASE WHEN t.event = 'answered' THEN 1 END) AS checks_answered,
    max(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.event END) AS decision,
    max(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.by END) AS decided_by,
    min(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.at_ms END) AS decided_at_ms,
    min(CASE WHEN t.event = 'visible' THEN t.at_ms END) AS visible_at_ms,
    max(CASE WHEN t.event = 'parked' THEN t.log_offset END) AS parked_at,
    max(CASE WHEN t.event = 'resumed' THEN t.log_offset END) AS resumed_at
  FROM transactions AS t
  WHERE t.head IS NOT NULL
  GROUP BY t.broker, t.head
),
shown AS (
  SELECT broker, head, topic, queue_id, queue_offset + message_count - 1 AS last_offset
  FROM transactions
  WHERE event = 'visible' AND head IS NOT NULL
),
passed AS (
  SELECT s.broker, s.head, s.topic, s.queue_id, s.last_offset, p.consumer_group,
    min(p.seen_at_ms) AS consumed_at_ms
  FROM shown AS s
  JOIN progress AS p
    ON p.broker = s.broker AND p.topic = s.topic AND p.queue_id = s.queue_id
    AND coalesce(p.offset_before, 0) <= s.last_offset AND s.last_offset < p.offset_after
  GROUP BY s.broker, s.head, s.topic, s.queue_id, s.last_offset, p.consumer_group
),
groups AS (
  SELECT broker, head, consumer_group, max(consumed_at_ms) AS consumed_at_ms
  FROM passed
  GROUP BY broker, head, consumer_group
),
consumed AS (
  SELECT broker, head, max(consumed_at_ms) AS consumed_at_ms,
    string_agg(consumer_group || ' ' || CAST(consumed_at_ms AS STRING), ', ') AS consumed_by
  FROM groups
  GROUP BY broker, head
)
SELECT
  l.broker,
  l.head,
  l.transaction_id,
  l.producer_group,
  l.ledger,
  coalesce(
    l.decision, CASE WHEN l.parked_at > coalesce(l.resumed_at, -1) THEN 'parked' ELSE 'prepared' END
  ) AS state,
  l.message_count,
  l.held_at_ms,
  l.checks_asked,
  l.checks_answered,
  l.decided_by,
  l.decided_at_ms,
  l.visible_at_ms,
  c.consumed_at_ms,
  c.consumed_by
FROM life AS l
LEFT JOIN consumed AS c ON c.broker = l.broker AND c.head = l.head
"""
"""One row for each transaction: its life line, and which groups were past its messages when."""


def register(spark: SparkSession, lake: Lake) -> None:
    """Let SQL see the lake as it is now."""
    for table in TABLES.values():
        lake.read(spark, table).createOrReplaceTempView(table.name)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {SUMMARY} AS {SUMMARY_SQL}")
