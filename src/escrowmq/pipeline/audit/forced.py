"""Finds decisions that a person forced. Op records keep them as long as the log does.

A ledger may no longer contradict them, because a janitor deletes the rows of decided transactions.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.producer.decide_by_hand import FORCED
from escrowmq.pipeline.audit.cases import as_findings, state_label
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import (
    DECIDED_AT_MS,
    DECIDED_BY,
    FIRST,
    HEAD,
    IS_FORCED,
    STATE_CODE,
)

COLUMNS = (FIRST, HEAD, STATE_CODE, DECIDED_AT_MS, DECIDED_BY, IS_FORCED)

#: Older programs recorded it only in the text.
_SAID = rf"(?s) by hand: .*{re.escape(FORCED)}(the ledger said .+|it has no ledger)\)$"


def told_forced(ops: DataFrame) -> DataFrame:
    """The transactions of these decisions (``COLUMNS``) that were forced, as findings."""
    forced = ops.where(F.col(IS_FORCED) | F.col(DECIDED_BY).rlike(_SAID))
    # A decision has a row for each run of half messages.
    return as_findings(
        forced.dropDuplicates([BROKER, HEAD]),
        name=F.lit(FindingName.DECIDED_BY_FORCE.value),
        half_offset=F.col(HEAD),
        at_ms=F.col(DECIDED_AT_MS),
        detail=F.concat(state_label(STATE_CODE), F.lit(" by "), F.col(DECIDED_BY)),
    )
