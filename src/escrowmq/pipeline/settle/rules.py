"""The time rules as Spark Columns. The rules themselves are in ``transaction/rules.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import DUES, HalfFacts, LabelT, Table, check_wait_ms

if TYPE_CHECKING:
    from pyspark.sql import Column


def due_column(half: HalfFacts, policy: CheckPolicy) -> Column:
    """Return what each half message is due for; the Column version of ``due``."""
    return label_column(half, policy, DUES)


def label_column(half: HalfFacts, policy: CheckPolicy, table: Table[LabelT]) -> Column:
    """Return the label of the first rule that holds for each half; the Column version of ``label``.

    There is no ``otherwise``. Where no rule holds, the facts are broken, and the NULL shows it.
    """
    # when() without otherwise() gives NULL where its rule does not hold, so the first value that is
    # not NULL belongs to the first rule that holds.
    return F.coalesce(*(F.when(holds(half, policy), F.lit(label.value)) for label, holds in table))


def check_wait_column(checks_sent: Column, policy: CheckPolicy) -> Column:
    """Return the wait before the next check in whole ms (bigint), like ``check_wait_ms``."""
    wait: Column = check_wait_ms(checks_sent, policy, least=_least, whole=_whole)
    return wait


def _least(column: Column, limit: int) -> Column:
    return F.least(column, F.lit(limit))


def _whole(column: Column) -> Column:
    # Truncates toward zero, as int() does.
    return column.cast("bigint")
