"""The rows that go into and come out of the tasks of a settle round. Nothing here needs Spark.

Output rows are of several kinds with one schema, because they flow through one job: back-checks
still to be sent, sink attempts, parked transactions, and counts of all that was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.views.facts import (
    AGE_MS,
    ALLOWED_MS,
    AS_OF_MS,
    BROKER,
    CHECKS_SENT,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    PRODUCERS_ONLINE,
    STATE_CODE,
    STORED_AT_MS,
    TRANSACTION_ID,
    WAIT_MS,
)

DUE = "due"
DUE_UNANSWERED = "due_unanswered"
PARK_REASON = "park_reason"
#: Two labels besides those of ``Due``.
ATTEMPT = "attempt"
NO_PRODUCER = "no_producer"
#: Whether producers are asked only because no configured database has the named ledger.
NO_LEDGER = "no_ledger"

#: The columns that are read of each transaction.
READ_COLUMNS = (
    BROKER,
    AS_OF_MS,
    HALF_OFFSET,
    TRANSACTION_ID,
    PRODUCER_GROUP,
    LEDGER,
    ALLOWED_MS,
    STATE_CODE,
    STORED_AT_MS,
    AGE_MS,
    WAIT_MS,
    CHECKS_SENT,
    PRODUCERS_ONLINE,
)
#: The columns that go to the tasks: some of those above, and the results of the rules.
SETTLE_COLUMNS = (
    BROKER,
    AS_OF_MS,
    HALF_OFFSET,
    STATE_CODE,
    CHECKS_SENT,
    DUE,
    DUE_UNANSWERED,
    PARK_REASON,
    TRANSACTION_ID,
    PRODUCER_GROUP,
    LEDGER,
    STORED_AT_MS,
    ALLOWED_MS,
    AGE_MS,
    WAIT_MS,
    NO_LEDGER,
)


class ReportKind(StrEnum):
    """Kind of a report."""

    ASK = "ask"
    ATTEMPT = "attempt"
    PARKED = "parked"
    COUNT = "count"
    #: How the look-ups in one ledger ended.
    LEDGER = "ledger"


KIND = "kind"
LANE = "lane"
WHAT = "what"
REASON = "reason"
ROWS = "rows"
CAUSE = "cause"

_FIELDS = {
    KIND: "string",
    BROKER: "string",
    #: Back-checks of one lane share a budget. Their lane is their producer group.
    LANE: "string",
    HALF_OFFSET: "bigint",
    STATE_CODE: "int",
    CHECKS_SENT: "int",
    WAIT_MS: "bigint",
    AGE_MS: "bigint",
    STORED_AT_MS: "bigint",
    TRANSACTION_ID: "string",
    PRODUCER_GROUP: "string",
    #: For a count: what was done or why not, and how often.
    WHAT: "string",
    REASON: "string",
    ROWS: "bigint",
    #: For look-ups: the ledger and the error text; REASON has the error code, empty for none.
    LEDGER: "string",
    CAUSE: "string",
}
REPORT_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())

SEEN = "seen"
WAITING = "waiting"
WITHOUT_DUE = "without_due"
UNKNOWN = "unknown"
#: Also unknown, because the broker could not be told or did not answer.
UNTOLD = "untold"
ASKS_DUE = "asks_due"
ASKS_SENT = "asks_sent"


class CountKey(NamedTuple):
    """The key of a count."""

    broker: str
    #: An outcome of a verdict, or one of the words above.
    what: str
    reason: str = ""


Tallies = Counter[CountKey]


def arrow_schema() -> pa.Schema:
    """The Arrow schema of reports."""
    types = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    return pa.schema([(name, types[kind]) for name, kind in _FIELDS.items()])


def reports(kind: ReportKind, rows: Iterable[Mapping[str, Any]], *, origin: str) -> pa.RecordBatch:
    """Make reports of one kind, each in its own lane; `origin` is unique to the task."""
    made = [
        {**row, KIND: kind.value, LANE: f"{kind.value} {origin} {number}"}
        for number, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(made, schema=arrow_schema())


def counts(tallies: Tallies, *, origin: str) -> pa.RecordBatch:
    """Make one report for each count."""
    rows = (
        {BROKER: tally.broker, WHAT: tally.what, REASON: tally.reason, ROWS: count}
        for tally, count in tallies.items()
    )
    return reports(ReportKind.COUNT, rows, origin=origin)


def passed(batch: pa.RecordBatch, kind: ReportKind, *, origin: str) -> pa.RecordBatch:
    """Rows for the next stage. The lane of a back-check is its producer group."""
    schema, count = arrow_schema(), batch.num_rows
    made = {KIND: pa.repeat(kind.value, count)}
    if kind is ReportKind.ASK:
        made[LANE] = batch.column(PRODUCER_GROUP)
    else:
        made[LANE] = pa.array([f"{kind.value} {origin} {number}" for number in range(count)])
    columns = [
        made[name]
        if name in made
        else batch.column(name)
        if name in batch.schema.names
        else pa.nulls(count, type_)
        for name, type_ in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
