"""The time rules as Spark Columns. The rules themselves are in ``transaction/rules.py``."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import HalfFacts, LabelT, Table


def label_column(half: HalfFacts, policy: CheckPolicy, table: Table[LabelT]) -> Column:
    """Return the label of the first rule that holds for each half; the Column version of ``label``.

    There is no ``otherwise``. If no rule holds, the facts are invalid, and the label is NULL.
    """
    # when() without otherwise() gives NULL where its rule does not hold, so the first value that is
    # not NULL belongs to the first rule that holds.
    return F.coalesce(*(F.when(holds(half, policy), F.lit(label.value)) for label, holds in table))
