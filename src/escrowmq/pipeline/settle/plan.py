"""Builds the one Spark job of a settle round, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.pipeline.settle import stages
from escrowmq.pipeline.settle.brokers import AnsweringBroker, sights_of
from escrowmq.pipeline.settle.rows import READ_COLUMNS, ReportKind
from escrowmq.pipeline.settle.tasks import SettleTask, TellTask
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RANGE_ROWS = 50_000
"""The approximate number of transactions that one task settles."""
SMALL_ROWS = 10_000
"""Up to this many undecided transactions, over all brokers, are settled in one task."""


class RoundPlan:
    """Builds a new job for each round.

    The rules as Columns are kept between rounds. Building them takes hundreds of calls into the
    JVM, which took half of a small round.
    """

    def __init__(self, spark: SparkSession, asks_max: int) -> None:
        self.spark = spark
        self._asks_max = asks_max
        self._due: tuple[object, Sequence[Column]] = (None, ())
        self._columns: Sequence[Column] = ()

    def reports(self, standing: Sequence[AnsweringBroker], known: KnownLedgers) -> DataFrame:
        """The reports of a round. The work happens when the DataFrame is collected."""
        policies = {broker.address: broker.policy for broker in standing}
        made_from = (policies, known.uuids, bool(known.unnamed))
        if self._due[0] != made_from:
            made = stages.due_columns(policies, known.uuids, has_unnamed_ledger=bool(known.unnamed))
            self._due = made_from, made
        self._columns = self._columns or stages.task_columns()
        # The kept Columns hold the rules of all brokers, because the brokers with work change each
        # round.
        at_work = [broker for broker in standing if broker.has_work]
        due = stages.to_settle(self._undecided(at_work), self._due[1], self._columns)
        sights = sights_of(standing)
        settled = stages.reported(due, SettleTask(known, sights))
        budgeted = stages.within_budget(settled, self._asks_max)
        return stages.reported(budgeted, TellTask(VerdictKind.ASK, ReportKind.ASK, sights))

    def _undecided(self, standing: Sequence[AnsweringBroker]) -> DataFrame:
        options = {
            "view": "transactions",
            "broker": ",".join(broker.address for broker in standing),
            "states": State.PREPARED.label,
            "columns": ",".join(READ_COLUMNS),
            "withIds": "true",
            "rangeRows": str(RANGE_ROWS),
        }
        read = self.spark.read.format("escrowmq").options(**options).load()
        is_small = sum(broker.undecided for broker in standing) <= SMALL_ROWS
        return read.coalesce(1) if is_small else read
