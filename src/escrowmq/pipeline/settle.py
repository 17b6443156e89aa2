"""Settling as DataFrames: what each undecided transaction is due for, and what is done about it.

Functions from DataFrames to DataFrames: no action and no session is here.  What tasks do is in
``settle_tasks``; a whole round is in ``settling``.  The rows are read once and flow through once:

    undecided -> classified -> to_settle -> settled -> within_budget -> told
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.pipeline.facts import (
    BROKER,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    PRODUCERS_ONLINE,
    WAIT_MS,
    half_facts,
)
from escrowmq.pipeline.rules import label_column
from escrowmq.pipeline.settle_rows import (
    ATTEMPT,
    DUE,
    DUE_UNANSWERED,
    LANE,
    NO_PRODUCER,
    PARK_REASON,
    REPORT_SCHEMA,
    SETTLE_COLUMNS,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import DUES, DUES_UNANSWERED, PARK_REASONS, Due

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

    from escrowmq.pipeline.settle_tasks import SettleTask, TellTask
    from escrowmq.transaction.rules import LabelT, Table

SEEN = "seen"
WAITING = "waiting"
WITHOUT_DUE = "without_due"
_RANK = "rank"
#: What something is done about.
_ACTED_ON = (Due.LOOK_UP.value, Due.PARK.value, Due.ASK.value, ATTEMPT)


def classified(
    undecided: DataFrame, policies: Mapping[str, CheckPolicy], ledger_uuids: Collection[str]
) -> DataFrame:
    """Add what each is due for, by its own broker's policy.

    A ledger that nobody here can read is none: the producers are asked, who have theirs.  Attempts
    of the Spark sink have no producer, and no time rule holds for them.
    """
    known = undecided[LEDGER].isin(list(ledger_uuids))
    half = replace(half_facts(undecided), has_ledger=known.cast("int"))

    def labelled(table: Table[LabelT]) -> Column:
        return F.coalesce(
            *(
                F.when(undecided[BROKER] == broker, label_column(half, policy, table))
                for broker, policy in policies.items()
            )
        )

    due = labelled(DUES)
    is_attempt = undecided[PRODUCER_GROUP].startswith(GROUP_PREFIX)
    has_nobody = (due == Due.ASK.value) & (undecided[PRODUCERS_ONLINE] == 0)
    special = (F.when(is_attempt, F.lit(ATTEMPT)), F.when(has_nobody, F.lit(NO_PRODUCER)))
    return undecided.select(
        "*",
        F.coalesce(*special, due).alias(DUE),
        labelled(DUES_UNANSWERED).alias(DUE_UNANSWERED),
        labelled(PARK_REASONS).alias(PARK_REASON),
    )


def counted(due: DataFrame, counts: Observation) -> DataFrame:
    """Count, as the rows pass, what never reaches a task of ours."""
    waits = F.col(DUE).isin(Due.WAIT.value, Due.NOTHING.value)
    return due.observe(
        counts,
        F.count(F.lit(1)).alias(SEEN),
        F.count_if(waits).alias(WAITING),
        F.count_if(F.col(DUE) == NO_PRODUCER).alias(NO_PRODUCER),
        F.count_if(F.col(DUE).isNull()).alias(WITHOUT_DUE),
    )


def to_settle(due: DataFrame) -> DataFrame:
    """Keep those about which something is done now, with the columns that it takes."""
    is_acted_on = F.col(DUE).isin(*_ACTED_ON)
    return due.where(is_acted_on).select(*SETTLE_COLUMNS)


def settled(due: DataFrame, task: SettleTask) -> DataFrame:
    """Look up, decide and park, from the executors; what is to be asked about passes through."""
    return due.mapInArrow(task, REPORT_SCHEMA)


def within_budget(reports: DataFrame, asks_max: int) -> DataFrame:
    """Keep the checks that were due first, so many for each producer group of each broker.

    Producers queue few checks and drop the rest.  Reports that are no checks stand in lanes of
    their own, so that all of them stay.
    """
    longest_due_first = Window.partitionBy(BROKER, LANE).orderBy(WAIT_MS, HALF_OFFSET)
    ranked = reports.withColumn(_RANK, F.row_number().over(longest_due_first))
    return ranked.where(F.col(_RANK) <= asks_max).drop(_RANK)


def told(reports: DataFrame, task: TellTask) -> DataFrame:
    """Tell the brokers what to do, from the executors; reports of other kinds pass through."""
    return reports.mapInArrow(task, REPORT_SCHEMA)
