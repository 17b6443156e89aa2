"""Finds decisions that a person forced. Op records keep them as long as the log does.

A ledger may no longer contradict them, because a janitor deletes the rows of decided transactions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.settle_by_hand import FORCED
from escrowmq.pipeline.audit.cases import state_label
from escrowmq.pipeline.audit.findings import Finding
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.views.facts import (
    AT_MS,
    DECIDED_AT_MS,
    DECIDED_BY,
    DETAIL,
    FIRST,
    HALF_OFFSET,
    HEAD,
    IS_FORCED,
    PRODUCER_GROUP,
    STATE_CODE,
    TRANSACTION_ID,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (FIRST, HEAD, STATE_CODE, DECIDED_AT_MS, DECIDED_BY, IS_FORCED)

#: Older programs recorded it only in the text.
_SAID = rf"(?s) by hand: .*{re.escape(FORCED)}(the ledger said .+|it has no ledger)\)$"


def told_forced(ops: DataFrame) -> DataFrame:
    """The transactions of these decisions (``COLUMNS``) that were forced, as findings."""
    forced = ops.where(F.col(IS_FORCED) | F.col(DECIDED_BY).rlike(_SAID))
    unknown = F.lit(None).cast("string")
    # A decision has a row for each run of half messages.
    return forced.dropDuplicates([BROKER, HEAD]).select(
        F.lit(Finding.DECIDED_BY_FORCE.value).alias(NAME),
        BROKER,
        F.col(HEAD).alias(HALF_OFFSET),
        unknown.alias(TRANSACTION_ID),
        unknown.alias(PRODUCER_GROUP),
        F.col(DECIDED_AT_MS).alias(AT_MS),
        F.concat(state_label(STATE_CODE), F.lit(" by "), F.col(DECIDED_BY)).alias(DETAIL),
    )
