"""The lake in SQL: its tables and one view, under their names.

The view's SQL works in Spark and in DuckDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_log(__name__)

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
    max(CASE WHEN t.event = 'asked' THEN t.at_ms END) AS asked_at_ms,
    count(CASE WHEN t.event = 'answered' THEN 1 END) AS checks_answered,
    max(CASE WHEN t.event = 'answered' THEN t.at_ms END) AS answered_at_ms,
    max(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.event END) AS decision,
    max(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.by END) AS decided_by,
    min(CASE WHEN t.event IN ('committed', 'rolled_back') THEN t.at_ms END) AS decided_at_ms,
    max(CASE WHEN t.event = 'parked' THEN t.log_offset END) AS parked_at,
    max(CASE WHEN t.event = 'resumed' THEN t.log_offset END) AS resumed_at
  FROM transactions AS t
  WHERE t.head IS NOT NULL
  GROUP BY t.broker, t.head
),
batches AS (
  SELECT DISTINCT broker, log_offset, head
  FROM transactions
  WHERE event = 'committed' AND app_id IS NOT NULL
),
places AS (
  SELECT broker, head, at_ms, topic, queue_id, queue_offset, message_count
  FROM transactions
  WHERE event = 'visible' AND head IS NOT NULL
  UNION ALL
  SELECT v.broker, b.head, v.at_ms, v.topic, v.queue_id, v.queue_offset, v.message_count
  FROM transactions AS v
  JOIN batches AS b ON b.broker = v.broker AND b.log_offset = v.log_offset
  WHERE v.event = 'visible' AND v.app_id IS NOT NULL
  UNION ALL
  SELECT v.broker, h.head, v.at_ms, v.topic, v.queue_id, v.queue_offset, v.message_count
  FROM transactions AS v
  JOIN transactions AS h
    ON h.broker = v.broker AND h.event = 'held'
    AND h.first <= v.first AND v.first < h.first + h.message_count
  WHERE v.event = 'visible' AND v.head IS NULL AND v.app_id IS NULL
),
shown AS (
  SELECT broker, head, topic, queue_id, queue_offset + message_count - 1 AS last_offset,
    min(at_ms) AS at_ms
  FROM places
  GROUP BY broker, head, topic, queue_id, queue_offset + message_count - 1
),
seen AS (
  SELECT broker, head, min(at_ms) AS visible_at_ms
  FROM shown
  GROUP BY broker, head
),
readers AS (
  SELECT DISTINCT broker, topic, consumer_group
  FROM progress
),
wanted AS (
  SELECT s.broker, s.head, r.consumer_group, count(*) AS place_count
  FROM shown AS s
  JOIN readers AS r ON r.broker = s.broker AND r.topic = s.topic
  GROUP BY s.broker, s.head, r.consumer_group
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
finished AS (
  SELECT p.broker, p.head, p.consumer_group, max(p.consumed_at_ms) AS consumed_at_ms
  FROM passed AS p
  JOIN wanted AS w
    ON w.broker = p.broker AND w.head = p.head AND w.consumer_group = p.consumer_group
  GROUP BY p.broker, p.head, p.consumer_group
  HAVING count(*) = max(w.place_count)
),
consumed AS (
  SELECT broker, head, max(consumed_at_ms) AS consumed_at_ms,
    string_agg(consumer_group || ' ' || CAST(consumed_at_ms AS STRING), ', ') AS consumed_by
  FROM finished
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
  l.asked_at_ms,
  l.checks_answered,
  l.answered_at_ms,
  l.decided_by,
  l.decided_at_ms,
  s.visible_at_ms,
  c.consumed_at_ms,
  c.consumed_by
FROM life AS l
LEFT JOIN seen AS s ON s.broker = l.broker AND s.head = l.head
LEFT JOIN consumed AS c ON c.broker = l.broker AND c.head = l.head
"""
"""One row for each transaction: its life line.

``visible`` has no head where a batch of the sink was decided, or delayed messages came due. For a
batch, its record has the heads. For a delayed message, the held request has the head. A group has
consumed a transaction when it is past all of the transaction's offsets in the topics that the group
reads. For a batch, it must be past all of the batch's offsets.
"""


def register(spark: SparkSession, lake: Lake) -> None:
    """Make the current lake visible to SQL.

    A location without a lake gives empty tables, and the event ``lake_empty`` is logged.
    """
    if not lake.has_tables():
        log.warning("lake_empty", extra={"lake": lake.uri})
    for table in TABLES.values():
        lake.read(spark, table).createOrReplaceTempView(table.name)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {SUMMARY} AS {SUMMARY_SQL}")
