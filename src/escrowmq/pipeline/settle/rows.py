"""The rows of a settle round: what goes into a task, and what comes out of it.  No Spark here.

A task's rows out are of several kinds with one schema, because they flow through one job: checks
that are still to be sent, attempts of sinks, what was parked, and counts of all that was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

DUE = "due"
DUE_UNANSWERED = "due_unanswered"
PARK_REASON = "park_reason"
#: What the rules call ``Due``, and two labels more.
ATTEMPT = "attempt"
NO_PRODUCER = "no_producer"
#: Whether producers are to be asked only because no database here has the ledger that is named.
NO_LEDGER = "no_ledger"

#: What is read of each transaction.
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
#: What of that goes to the tasks, and what the rules say.
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


class Kind(StrEnum):
    """What a report is of."""

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
    #: Checks of one lane share a budget: that is their producer group.
    LANE: "string",
    HALF_OFFSET: "bigint",
    STATE_CODE: "int",
    CHECKS_SENT: "int",
    WAIT_MS: "bigint",
    AGE_MS: "bigint",
    STORED_AT_MS: "bigint",
    TRANSACTION_ID: "string",
    PRODUCER_GROUP: "string",
    #: Of a count: what was done, why it was not, and how often.
    WHAT: "string",
    REASON: "string",
    ROWS: "bigint",
    #: Of look-ups: in which ledger, and what failed, in words; the reason is empty if nothing did.
    LEDGER: "string",
    CAUSE: "string",
}
REPORT_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())

SEEN = "seen"
WAITING = "waiting"
WITHOUT_DUE = "without_due"
UNKNOWN = "unknown"
#: Unknown too, because the broker could not be told, or did not answer.
UNTOLD = "untold"
ASKS_DUE = "asks_due"
ASKS_SENT = "asks_sent"


class Tally(NamedTuple):
    """What is counted."""

    broker: str
    #: An outcome of a verdict, or one of the words above.
    what: str
    reason: str = ""


Tallies = Counter[Tally]


def arrow_schema() -> pa.Schema:
    """The schema of reports, as Arrow has it."""
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    return pa.schema([(name, types[kind]) for name, kind in _FIELDS.items()])


def reports(kind: Kind, rows: Iterable[Mapping[str, Any]], *, origin: str) -> pa.RecordBatch:
    """Reports of one kind, each in a lane of its own; `origin` is the task's own word."""
    import pyarrow as pa

    made = [
        {**row, KIND: kind.value, LANE: f"{kind.value} {origin} {number}"}
        for number, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(made, schema=arrow_schema())


def counts(tallies: Tallies, *, origin: str) -> pa.RecordBatch:
    """What was counted."""
    rows = (
        {BROKER: tally.broker, WHAT: tally.what, REASON: tally.reason, ROWS: count}
        for tally, count in tallies.items()
    )
    return reports(Kind.COUNT, rows, origin=origin)


def passed(batch: pa.RecordBatch, kind: Kind, *, origin: str) -> pa.RecordBatch:
    """Rows that the next stage works on; checks stand in the lane of their producer group."""
    import pyarrow as pa

    schema, count = arrow_schema(), batch.num_rows
    made = {KIND: pa.repeat(kind.value, count)}
    if kind is Kind.ASK:
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
