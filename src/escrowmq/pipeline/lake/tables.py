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
    "recalled",
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
        "queue_offset": ("bigint", "Its offset in the queue."),
        "log_offset": ("bigint", "Its offset in the broker's log."),
        "message_id": ("string", "RocketMQ's message id, which encodes where it is stored."),
        "unique_key": ("string", "The id that its producer gave it."),
        "keys": ("string", "All keys, separated by blanks."),
        "tags": ("string", ""),
        "body": ("binary", "Decompressed if the producer compressed it."),
        "properties": ("map<string,string>", "All properties, including RocketMQ's own."),
        "flag": ("int", "A number that the producer sets."),
        "born_at_ms": ("bigint", "When it was sent, by the producer's clock."),
        "stored_at_ms": ("bigint", "When the broker stored it."),
        "visible_at_ms": ("bigint", "When it became visible to consumers."),
        "reconsume_times": ("int", "How often it was delivered before."),
        "transaction_id": ("string", "Null if the message was not sent in a transaction."),
    },
)

TRANSACTIONS = LakeTable(
    name="transactions",
    about="Events of transactions. Columns that an event does not have are null.",
    dated_by="at_ms",
    ranged_by=("log_offset", "at_ms"),
    columns={
        "broker": ("string", "The name of the broker."),
        "log_offset": ("bigint", "The event's offset in the broker's log."),
        "at_ms": ("bigint", "When it happened, by the broker's clock."),
        "event": ("string", f"{', '.join(EVENTS)}, or unreadable if the log is damaged there."),
        "head": ("bigint", "The transaction's first half offset. With the broker, it is the key."),
        "first": ("bigint", "The half offset of the first half message that the event is about."),
        "message_count": ("bigint", "The number of half messages from there on."),
        "transaction_id": ("string", "For held and carried. Stock clients may use one id twice."),
        "producer_group": ("string", "For held and carried."),
        "ledger": ("string", "The UUID of the ledger that knows the outcome."),
        "number": (
            "bigint",
            "The number of the request within the transaction; -1 for a stock client.",
        ),
        "checks_sent": ("int", "The number of the check."),
        "by": (
            "string",
            "The client, operator, broker or pipeline that decided, resumed or was asked.",
        ),
        "detail": ("string", "More facts, such as the reason for parking."),
        "topic": ("string", "For visible: the topic of the messages."),
        "queue_id": ("int", "For visible: the queue."),
        "queue_offset": ("bigint", "For visible: the first queue offset."),
        "app_id": ("string", "For a batch of the Spark sink: its app id."),
        "batch_id": ("string", "For a batch of the Spark sink: its number or name."),
    },
)

PROGRESS = LakeTable(
    name="progress",
    about="Positions of consumer groups when the archive looked; one row for each change.",
    dated_by="seen_at_ms",
    ranged_by=("queue_id", "offset_after", "seen_at_ms"),
    columns={
        "broker": ("string", "The name of the broker."),
        "consumer_group": ("string", ""),
        "topic": ("string", ""),
        "queue_id": ("int", ""),
        "offset_before": (
            "bigint",
            "The offset of the next message to read, when the archive last looked.",
        ),
        "offset_after": ("bigint", "The same offset now. It is lower if the group was reset."),
        "seen_at_ms": ("bigint", "When the archive saw it, by the broker's clock."),
    },
)

SETTLE_ROUNDS = LakeTable(
    name="settle_rounds",
    about="The results of each round of settling.",
    dated_by="started_at_ms",
    ranged_by=("started_at_ms",),
    columns={
        "started_at_ms": ("bigint", "When the round started, by the driver's clock."),
        "took_ms": ("bigint", ""),
        "brokers": ("bigint", "The number of brokers that answered."),
        "seen": ("bigint", "Undecided transactions that were read."),
        "waiting": ("bigint", "Transactions whose next check is not due yet."),
        "asked": ("bigint", "Back-checks that a producer's socket accepted."),
        "committed": ("bigint", ""),
        "rolled_back": ("bigint", ""),
        "parked": ("bigint", ""),
        "no_producer": ("bigint", "Due for a back-check, but no producer of the group was online."),
        "detail": ("string", "The other facts of the round, as JSON."),
    },
)

QUARANTINE = LakeTable(
    name="quarantine",
    about="Messages with a problem, as far as they can be read.",
    dated_by="visible_at_ms",
    ranged_by=("queue_id", "queue_offset", "visible_at_ms"),
    columns={
        **MESSAGES.columns,
        "body": ("binary", "As it was sent; at most its first 256 KiB."),
        "body_bytes": ("bigint", "The size of the whole body."),
        "sys_flag": ("int", "RocketMQ's flags. The lowest bit means that the body is compressed."),
        "problem": ("string", "The reason for the quarantine."),
        "archive_id": ("bigint", "The id of the checkpoint that archived it."),
        "batch": ("bigint", "The number of the batch in that checkpoint."),
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
