"""Facts about transactions: what their columns are called, and what the rules need of them.

The names are those of the rows that brokers answer with: a name that is no field there is found
by the type checker, before any job runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from escrowmq.protocol.own_rows import CheckRow, HalfRow, LogEventRow, OpRow, TransactionRow
from escrowmq.transaction.rules import HalfFacts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def _name(field: object) -> str:
    """What a field of a class of rows is called."""
    name: str = field.__name__  # type: ignore[attr-defined]  # the class has a descriptor there
    return name


# In every view.
#: The address that was read from: where verdicts go.
BROKER = "broker"
#: The name that the broker gives itself: what stays when its address changes.
BROKER_NAME = "broker_name"
#: The broker's clock when it answered.
AS_OF_MS = "as_of_ms"

# Transactions.
HALF_OFFSET = _name(TransactionRow.half_offset)
TRANSACTION_ID = _name(TransactionRow.transaction_id)
PRODUCER_GROUP = _name(TransactionRow.producer_group)
LEDGER = _name(TransactionRow.ledger)
ALLOWED_MS = _name(TransactionRow.allowed_ms)
STATE = _name(TransactionRow.state)
STORED_AT_MS = _name(TransactionRow.stored_at_ms)
AGE_MS = _name(TransactionRow.age_ms)
WAIT_MS = _name(TransactionRow.wait_ms)
CHECKS_SENT = _name(TransactionRow.checks_sent)
MESSAGE_COUNT = _name(TransactionRow.message_count)
PRODUCERS_ONLINE = _name(TransactionRow.producers_online)

# What the log says: half messages, decisions, checks, and all that happened.
LOG_OFFSET = _name(HalfRow.log_offset)
FIRST = _name(HalfRow.first)
HEAD = _name(HalfRow.head)
NUMBER = _name(HalfRow.number)
IS_COPY = _name(HalfRow.is_copy)
DECIDED_AT_MS = _name(OpRow.decided_at_ms)
DECIDED_BY = _name(OpRow.decided_by)
APP_ID = _name(OpRow.app_id)
BATCH_ID = _name(OpRow.batch_id)
IS_FORCED = _name(OpRow.is_forced)
AT_MS = _name(CheckRow.at_ms)
EVENT = _name(CheckRow.event)
DETAIL = _name(CheckRow.detail)
BY = _name(LogEventRow.by)
TOPIC = _name(LogEventRow.topic)
QUEUE_ID = _name(LogEventRow.queue_id)
QUEUE_OFFSET = _name(LogEventRow.queue_offset)

#: The columns that ``half_facts`` reads.
FACT_COLUMNS = (STATE, AGE_MS, WAIT_MS, CHECKS_SENT, LEDGER)


def half_facts(transactions: DataFrame | Mapping[str, Column]) -> HalfFacts:
    """What the rules need to know of each row of the view ``transactions``, as Columns.

    None of them is ever NULL, if the rows are the view's: a NULL would fall through a rule and be
    caught by the next.  Whoever joins first must not make them so.
    """
    state, age_ms, wait_ms, checks_sent, ledger = (transactions[name] for name in FACT_COLUMNS)
    return HalfFacts(
        state=state,
        age_ms=age_ms,
        wait_ms=wait_ms,
        checks_sent=checks_sent,
        has_ledger=_has_text(ledger),
    )


def _has_text(column: Column) -> Column:
    return (column != "").cast("int")
