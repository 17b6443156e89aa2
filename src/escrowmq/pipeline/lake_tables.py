"""The tables of the lake: their columns, and what they are partitioned by.

A column's comment is what the guide says of it.  ``date`` is the day, in UTC, of the column that
the table is dated by; it is made when files are written and is never part of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.model.errors import RequestRefused

DATE = "date"
DAY_MS = 86_400_000

_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """One table."""

    name: str
    about: str
    #: The type, in SQL's words, and the comment of each column, without ``date``.
    columns: Mapping[str, tuple[str, str]]
    #: The instant, in ms, whose day is the row's ``date``.
    dated_by: str
    #: Partitioned by these and by ``date``.
    divided_by: tuple[str, ...] = ()
    #: Numbers that files are told apart by: readers pass over those that cannot match.
    ranged_by: tuple[str, ...] = ()

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The columns that are directories."""
        return (*self.divided_by, DATE)

    def arrow_schema(self) -> pa.Schema:
        """All columns."""
        fields = [(name, _ARROW[kind]) for name, (kind, _) in self.columns.items()]
        return pa.schema([*fields, (DATE, _ARROW["date"])])

    def file_schema(self) -> pa.Schema:
        """The columns that stand in files."""
        return pa.schema([f for f in self.arrow_schema() if f.name not in self.partitioned_by])

    def ddl(self) -> str:
        """All columns, as Spark is told them."""
        columns = [f"`{name}` {kind}" for name, (kind, _) in self.columns.items()]
        return ", ".join([*columns, f"`{DATE}` date"])


MESSAGES = LakeTable(
    name="messages",
    about="Messages that consumers could see, each once.",
    dated_by="visible_at_ms",
    divided_by=("topic",),
    ranged_by=("queue_id", "queue_offset", "visible_at_ms"),
    columns={
        "broker": ("string", "The name of the broker that stored it."),
        "topic": ("string", ""),
        "queue_id": ("int", ""),
        "queue_offset": ("bigint", "Its place in the queue."),
        "log_offset": ("bigint", "Its place in the broker's log."),
        "message_id": ("string", "RocketMQ's id of the place where it is stored."),
        "unique_key": ("string", "The id that its producer gave it."),
        "keys": ("string", "With blanks between them."),
        "tags": ("string", ""),
        "body": ("binary", "Not compressed, whatever its producer did."),
        "properties": ("map<string,string>", "All properties, RocketMQ's own too."),
        "flag": ("int", "The producer's own."),
        "born_at_ms": ("bigint", "When it was sent, on its producer's clock."),
        "stored_at_ms": ("bigint", "When the broker stored it."),
        "visible_at_ms": ("bigint", "When consumers could see it."),
        "reconsume_times": ("int", "How often it had been tried before."),
        "transaction_id": ("string", "Null for a message that was never a half message."),
    },
)

TRANSACTIONS = LakeTable(
    name="transactions",
    about="What happened to transactions; one row for each event.",
    dated_by="at_ms",
    ranged_by=("half_offset", "log_offset", "at_ms"),
    columns={
        "broker": ("string", "The name of the broker."),
        "half_offset": ("bigint", "The transaction's first half message: with `broker`, its key."),
        "transaction_id": ("string", "An index: stock clients may use one twice."),
        "producer_group": ("string", ""),
        "ledger": ("string", "The UUID of the ledger that knows the outcome; empty without one."),
        "event": (
            "string",
            "held, asked, answered, parked, resumed, committed, rolled_back or visible.",
        ),
        "at_ms": ("bigint", "When, on the broker's clock."),
        "log_offset": ("bigint", "Where the broker's log has it."),
        "by": ("string", "By whom, or who was asked."),
        "detail": ("string", "Which check, why, or where and how many."),
    },
)

PROGRESS = LakeTable(
    name="progress",
    about="How far consumer groups were when somebody looked; a row for each change.",
    dated_by="seen_at_ms",
    ranged_by=("queue_id", "offset_before", "offset_after", "seen_at_ms"),
    columns={
        "broker": ("string", "The name of the broker."),
        "consumer_group": ("string", ""),
        "topic": ("string", ""),
        "queue_id": ("int", ""),
        "offset_before": ("bigint", "The next message that it would read, at the last look."),
        "offset_after": ("bigint", "The same at this look: lower if it was sent back."),
        "seen_at_ms": ("bigint", "When it was seen, on the broker's clock."),
    },
)

SETTLE_ROUNDS = LakeTable(
    name="settle_rounds",
    about="What each round of settling did.",
    dated_by="started_at_ms",
    ranged_by=("started_at_ms",),
    columns={
        "started_at_ms": ("bigint", ""),
        "took_ms": ("bigint", ""),
        "seen": ("bigint", "Undecided transactions that were looked at."),
        "waiting": ("bigint", "Nothing was due for them."),
        "asked": ("bigint", "Producers that were asked."),
        "committed": ("bigint", ""),
        "rolled_back": ("bigint", ""),
        "parked": ("bigint", ""),
        "no_producer": ("bigint", "Nobody was online who could be asked."),
        "detail": ("string", "The rest of the round's summary, as JSON."),
    },
)

QUARANTINE = LakeTable(
    name="quarantine",
    about="Messages that cannot be told as the others are, as they came.",
    dated_by="visible_at_ms",
    ranged_by=("queue_id", "queue_offset", "visible_at_ms"),
    columns={
        "broker": ("string", "The name of the broker that stored it."),
        "topic": ("string", ""),
        "queue_id": ("int", ""),
        "queue_offset": ("bigint", "Its place in the queue."),
        "log_offset": ("bigint", "Its place in the broker's log."),
        "visible_at_ms": ("bigint", "When consumers could see it."),
        "problem": ("string", "What is wrong with it."),
        "raw": ("binary", "Its bytes, as far as they are kept."),
        "raw_bytes": ("bigint", "How many there were."),
        "archive_id": ("string", "Which checkpoint, and which batch of it, brought it here."),
        "batch": ("bigint", ""),
    },
)

TABLES = {
    table.name: table for table in (MESSAGES, TRANSACTIONS, PROGRESS, SETTLE_ROUNDS, QUARANTINE)
}


def table_named(name: str) -> LakeTable:
    """The table of that name."""
    if name not in TABLES:
        raise RequestRefused("no_such_table", f"there are {', '.join(TABLES)}", table=name)
    return TABLES[name]
