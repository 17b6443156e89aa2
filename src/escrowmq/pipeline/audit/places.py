"""Explains why a committed message may not be visible: it waits, or its queue offset is gone.

A decision says which queue offsets it assigned. Retention removes offsets below their queue's
start, though the message itself may still be in the log. Deleting a topic removes its offsets too.
Messages without a queue offset yet wait for their delivery time.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit.joins import FOUND, OTHER
from escrowmq.pipeline.source.message_columns import QUEUE_OFFSET
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import FIRST, HALF_OFFSET, LOG_OFFSET
from escrowmq.pipeline.views.facts import MESSAGE_COUNT as COUNT

START, END, DECISION = "start", "end", "decision"
_DECISION = (BROKER, DECISION)


def unexplained(hidden: DataFrame, ops: DataFrame, places: DataFrame) -> DataFrame:
    """The hidden findings (``joins.FOUND``) that are not fully explained for their decision.

    ``places`` are the events ``visible``, each with its queue's ``start``, which is null if the
    queue no longer exists.
    """
    runs = ops.select(BROKER, FIRST, COUNT, F.col(LOG_OFFSET).alias(DECISION))
    of_hidden = runs.select(BROKER, F.col(FIRST).alias(HALF_OFFSET), DECISION)
    hidden = hidden.join(of_hidden, on=[BROKER, HALF_OFFSET], how="inner")
    decisions = hidden.select(*_DECISION).distinct()
    given = places.withColumnRenamed(LOG_OFFSET, DECISION).withColumn("gone", _gone())
    totals = (
        runs.join(decisions, on=list(_DECISION), how="left_semi")
        .groupBy(*_DECISION)
        .agg(F.sum(COUNT).alias("total"))
    )
    at_once = (
        given.join(decisions, on=list(_DECISION), how="left_semi")
        .groupBy(*_DECISION)
        .agg(F.sum(COUNT).alias("given"), F.sum("gone").alias("gone"))
    )
    missing = hidden.groupBy(*_DECISION).agg(F.sum(F.col(COUNT) - F.col(OTHER)).alias("missing"))
    judged = (
        missing.join(totals, on=list(_DECISION), how="left")
        .join(at_once, on=list(_DECISION), how="left")
        .join(_later(hidden, given), on=list(_DECISION), how="left")
        .fillna(0)
    )
    waiting = F.col("total") - F.col("given") - F.col("given_later")
    explained = waiting + F.col("gone") + F.col("gone_later")
    lost = judged.where(F.col("missing") > explained).select(*_DECISION)
    return hidden.join(lost, on=list(_DECISION), how="left_semi").select(*FOUND)


def _gone() -> Column:
    """How many offsets of a run are below their queue's start."""
    below = F.least(F.col(START) - F.col(QUEUE_OFFSET), F.col(COUNT))
    return F.when(F.col(START).isNull(), F.col(COUNT)).otherwise(F.greatest(below, F.lit(0)))


def _later(hidden: DataFrame, given: DataFrame) -> DataFrame:
    """Messages of hidden requests that got their offset later than the decision, when due."""
    last = F.col(HALF_OFFSET) + F.col(COUNT) - 1
    offsets = hidden.select(
        *_DECISION, F.explode(F.sequence(F.col(HALF_OFFSET), last)).alias(FIRST)
    )
    places = given.select(BROKER, FIRST, F.col(DECISION).alias("given_at"), "gone")
    return (
        offsets.join(places, on=[BROKER, FIRST], how="inner")
        .where(F.col("given_at") != F.col(DECISION))
        .groupBy(*_DECISION)
        .agg(F.count("*").alias("given_later"), F.sum("gone").alias("gone_later"))
    )
