"""The tables of the lake: their columns and partitions.

The guide shows a column's comment as its description. ``date`` is the day, in UTC, of the column
that dates the table. It is computed when files are written and is never stored in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.model.errors import RequestRefused

DATE = "date"
DAY_MS = 86_400_000

EVENTS = (
    "held",
    "carried",
    "asked",
    "answered",
    "parked",
    "resumed",
    "committed",
    "rolled_back",
    "visible",
)

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
    #: The SQL type and the comment of each column, without ``date``.
    columns: Mapping[str, tuple[str, str]]
    #: The instant, in ms, whose day is the row's ``date``.
    dated_by: str
    #: Numeric columns with statistics, by which readers skip files that cannot match. Never null.
    ranged_by: tuple[str, ...]
    #: The partition columns besides ``date``.
    divided_by: tuple[str, ...] = ()

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The columns that are directories."""
        return (*self.divided_by, DATE)

    def arrow_schema(self) -> pa.Schema:
        """All columns."""
        fields = [(name, _ARROW[kind]) for name, (kind, _) in self.columns.items()]
        return pa.schema([*fields, (DATE, _ARROW["date"])])

    def file_schema(self) -> pa.Schema:
        """The columns that are stored in files."""
        return pa.schema([f for f in self.arrow_schema() if f.name not in self.partitioned_by])

    def ddl(self) -> str:
        """All columns, as DDL for Spark."""
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
    about="What happened to transactions; what an event does not have is null.",
    dated_by="at_ms",
    ranged_by=("log_offset", "at_ms"),
    columns={
        "broker": ("string", "The name of the broker."),
        "log_offset": ("bigint", "Where the broker's log has it."),
        "at_ms": ("bigint", "When, on the broker's clock."),
        "event": ("string", f"{', '.join(EVENTS)}, or unreadable: nobody knows what."),
        "head": ("bigint", "The transaction's first half message: with the broker, its key."),
        "first": ("bigint", "The run of half messages that it is about: its first one,"),
        "message_count": ("bigint", "and how many."),
        "transaction_id": ("string", "Of held and carried; stock clients may use one twice."),
        "producer_group": ("string", "Of held and carried."),
        "ledger": ("string", "The UUID of the ledger that knows the outcome."),
        "number": ("bigint", "Which of the transaction's requests; -1 from a stock client."),
        "checks_sent": ("int", "Which check."),
        "by": ("string", "Who decided or resumed it, was asked, or answered."),
        "detail": ("string", "Why it was parked, and the like."),
        "topic": ("string", "Of visible: where,"),
        "queue_id": ("int", "in which queue,"),
        "queue_offset": ("bigint", "and from which offset on."),
        "app_id": ("string", "Of a batch that the Spark sink wrote."),
        "batch_id": ("string", "The same."),
    },
)

PROGRESS = LakeTable(
    name="progress",
    about="How far consumer groups were when somebody looked; a row for each change.",
    dated_by="seen_at_ms",
    ranged_by=("queue_id", "offset_after", "seen_at_ms"),
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
        "started_at_ms": ("bigint", "On the driver's clock."),
        "took_ms": ("bigint", ""),
        "brokers": ("bigint", "Brokers that were looked at."),
        "seen": ("bigint", "Undecided transactions that were read."),
        "waiting": ("bigint", "Their next check lies ahead."),
        "asked": ("bigint", "Producers' sockets took the check."),
        "committed": ("bigint", ""),
        "rolled_back": ("bigint", ""),
        "parked": ("bigint", ""),
        "no_producer": ("bigint", "Nobody was online who could be asked."),
        "detail": ("string", "The rest of the round's summary, as JSON."),
    },
)

QUARANTINE = LakeTable(
    name="quarantine",
    about="Messages that something is wrong with, as far as they can be told.",
    dated_by="visible_at_ms",
    ranged_by=("queue_id", "queue_offset", "visible_at_ms"),
    columns={
        **MESSAGES.columns,
        "body": ("binary", "As it was sent; of a long one, its beginning."),
        "body_bytes": ("bigint", "How long it is."),
        "sys_flag": ("int", "RocketMQ's bits; the lowest says that the body is compressed."),
        "problem": ("string", "What is wrong with it."),
        "archive_id": ("bigint", "The checkpoint, and the batch of it, that brought it here."),
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
