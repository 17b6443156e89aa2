"""Facts about transactions: the names of their columns, and the input of the rules.

The names are taken from the fields of the brokers' rows, so the type checker finds a wrong name
before any job runs. ``columns`` makes the columns from these fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.protocol.native.comparisons import ComparisonRow
from escrowmq.protocol.native.rows import (
    NO_CHECK_MS,
    CheckRow,
    HalfRow,
    OpRow,
    TransactionRow,
)
from escrowmq.transaction.rules import HalfFacts


def _name(field: object) -> str:
    """The name of a field of a row class."""
    return str(field.__name__)  # type: ignore[attr-defined]  # the class has a descriptor there


# In every view.
#: The address that was read from, and that verdicts go to.
BROKER = "broker"
#: The broker's own name, which stays when its address changes.
BROKER_NAME = "broker_name"
#: The broker's clock when it answered.
AS_OF_MS = "as_of_ms"

# Transactions.
HALF_OFFSET = _name(TransactionRow.half_offset)
TRANSACTION_ID = _name(TransactionRow.transaction_id)
#: The state as a word.
STATE = _name(TransactionRow.state)
#: The state as the number that the rules compute with.
STATE_CODE = "state_code"
PRODUCER_GROUP = _name(TransactionRow.producer_group)
LEDGER = _name(TransactionRow.ledger)
ALLOWED_MS = _name(TransactionRow.allowed_ms)
STORED_AT_MS = _name(TransactionRow.stored_at_ms)
AGE_MS = _name(TransactionRow.age_ms)
WAIT_MS = _name(TransactionRow.wait_ms)
CHECKS_SENT = _name(TransactionRow.checks_sent)
MESSAGE_COUNT = _name(TransactionRow.message_count)
PRODUCERS_ONLINE = _name(TransactionRow.producers_online)

# From the log: half messages, decisions, checks, and all other events.
LOG_OFFSET = _name(HalfRow.log_offset)
FIRST = _name(HalfRow.first)
HEAD = _name(HalfRow.head)
IS_COPY = _name(HalfRow.is_copy)
DECIDED_AT_MS = _name(OpRow.decided_at_ms)
DECIDED_BY = _name(OpRow.decided_by)
APP_ID = _name(OpRow.app_id)
IS_FORCED = _name(OpRow.is_forced)
AT_MS = _name(CheckRow.at_ms)
EVENT = _name(CheckRow.event)
DETAIL = _name(CheckRow.detail)

# The last comparison of half and op records with the state store.
COMPARED_AT_MS = _name(ComparisonRow.compared_at_ms)
FOUND_AT_MS = _name(ComparisonRow.found_at_ms)

#: Fields that are instants in milliseconds, and the names of their TIMESTAMP columns.
INSTANTS = {
    AS_OF_MS: "as_of",
    STORED_AT_MS: "stored_at",
    DECIDED_AT_MS: "decided_at",
    # ``at`` alone would hide an attribute of pandas DataFrames.
    AT_MS: "happened_at",
    COMPARED_AT_MS: "compared_at",
    FOUND_AT_MS: "found_at",
}

#: The columns that ``half_facts`` reads.
FACT_COLUMNS = (STATE_CODE, AGE_MS, WAIT_MS, CHECKS_SENT, LEDGER)


def half_facts(transactions: DataFrame | Mapping[str, Column]) -> HalfFacts:
    """The facts that the rules need about each row of the view ``transactions``, as Columns.

    None of them may be NULL: a NULL falls through the rule that it is meant for and matches the
    next one. The view has NULL where no check is planned, and this function turns that into an
    endless wait. A join before this must not add other NULLs.
    """
    state, age_ms, wait_ms, checks_sent, ledger = (transactions[name] for name in FACT_COLUMNS)
    return HalfFacts(
        state=state,
        age_ms=age_ms,
        wait_ms=F.coalesce(wait_ms, F.lit(NO_CHECK_MS)),
        checks_sent=checks_sent,
        has_ledger=(ledger != "").cast("int"),
    )
