"""Settling as DataFrames: what each undecided transaction is due for, and what is done about it.

These are functions from DataFrames to DataFrames, without actions or a session. ``tasks.py`` holds
what tasks do, and ``settling.py`` holds a whole round. The rows are read once and flow through
once:

    undecided -> to_settle -> settled -> within_budget -> told
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.pipeline.settle.rows import (
    ATTEMPT,
    DUE,
    DUE_UNANSWERED,
    LANE,
    NO_LEDGER,
    NO_PRODUCER,
    PARK_REASON,
    REPORT_SCHEMA,
    SETTLE_COLUMNS,
)
from escrowmq.pipeline.settle.rules import label_column
from escrowmq.pipeline.settle.tasks import SettleTask, TellTask
from escrowmq.pipeline.views.facts import (
    BROKER,
    FACT_COLUMNS,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    PRODUCERS_ONLINE,
    TRANSACTION_ID,
    WAIT_MS,
    half_facts,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import DUES, DUES_UNANSWERED, PARK_REASONS, Due, LabelT, Table

_RANK = "rank"
#: The labels that cause an action.
_ACTED_ON = (Due.LOOK_UP.value, Due.PARK.value, Due.ASK.value, ATTEMPT)
_TEXTS = (TRANSACTION_ID, PRODUCER_GROUP, LEDGER, DUE_UNANSWERED, PARK_REASON)


def due_columns(
    policies: Mapping[str, CheckPolicy],
    ledger_uuids: Collection[str],
    *,
    has_unnamed_ledger: bool = False,
) -> tuple[Column, ...]:
    """Return what each transaction is due for, by its own broker's policy.

    The Columns belong to no particular DataFrame. A ledger that is not configured here counts as
    absent: the producers are asked, and a column says so. While a configured database has not said
    which ledger it has, no ledger counts as absent. The database may hold that ledger, and asking
    would count checks against healthy transactions.

    Transactions of a broker that does not want checks by pipelines wait. Attempts of the Spark sink
    have no producer, and no time rule applies to them.
    """
    is_known = F.col(LEDGER).isin(list(ledger_uuids))
    if has_unnamed_ledger:
        is_known = F.col(LEDGER) != ""
    columns = {name: F.col(name) for name in FACT_COLUMNS}
    half = replace(half_facts(columns), has_ledger=is_known.cast("int"))

    def labelled(table: Table[LabelT]) -> Column:
        return F.coalesce(
            *(
                F.when(F.col(BROKER) == broker, label_column(half, policy, table))
                for broker, policy in policies.items()
            )
        )

    left_alone = [broker for broker, policy in policies.items() if not policy.is_for_pipelines]
    is_left_alone = F.col(BROKER).isin(left_alone)
    due = F.when(is_left_alone, F.lit(Due.WAIT.value)).otherwise(labelled(DUES))
    is_attempt = F.col(PRODUCER_GROUP).startswith(GROUP_PREFIX)
    has_no_producer = (due == Due.ASK.value) & (F.col(PRODUCERS_ONLINE) == 0)
    names_another = (F.col(LEDGER) != "") & ~is_known
    special = (F.when(is_attempt, F.lit(ATTEMPT)), F.when(has_no_producer, F.lit(NO_PRODUCER)))
    return (
        F.coalesce(*special, due).alias(DUE),
        labelled(DUES_UNANSWERED).alias(DUE_UNANSWERED),
        labelled(PARK_REASONS).alias(PARK_REASON),
        ((due == Due.ASK.value) & names_another).alias(NO_LEDGER),
    )


def task_columns() -> tuple[Column, ...]:
    """The columns that a task needs. Rows that it only counts carry no strings."""
    is_acted_on = F.col(DUE).isin(*_ACTED_ON)
    return tuple(
        F.when(is_acted_on, F.col(name)).alias(name) if name in _TEXTS else F.col(name)
        for name in SETTLE_COLUMNS
    )


def to_settle(undecided: DataFrame, due: Sequence[Column], columns: Sequence[Column]) -> DataFrame:
    """Add what each transaction is due for, and keep the columns that a task needs."""
    return undecided.select("*", *due).select(*columns)


def reported(rows: DataFrame, task: SettleTask | TellTask) -> DataFrame:
    """Run the task on the executors: settle, or send verdicts. It yields reports."""
    return rows.mapInArrow(task, REPORT_SCHEMA)


def within_budget(reports: DataFrame, asks_max: int) -> DataFrame:
    """Keep the first `asks_max` due back-checks for each producer group of each broker.

    Producers queue few back-checks and drop the rest. Reports of other kinds have a lane each, so
    all of them are kept.
    """
    longest_due_first = Window.partitionBy(BROKER, LANE).orderBy(WAIT_MS, HALF_OFFSET)
    ranked = reports.withColumn(_RANK, F.row_number().over(longest_due_first))
    return ranked.where(F.col(_RANK) <= asks_max).drop(_RANK)
