"""Compares a user's table with the messages: each row must have its message, and vice versa."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import opener_of, reading
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable
from escrowmq.pipeline.audit.business_events import EVENT, BusinessEvent, by_event
from escrowmq.pipeline.audit.cases import as_findings
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.source.message_columns import (
    KEYS,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    TOPIC,
    VISIBLE_AT_MS,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import TRANSACTION_ID

PAGE_ROWS = 10_000
LOCK_WAIT_MS = 10_000

KEY, ROW_COUNT, MESSAGES = "business_key", "row_count", "messages"
COUNTED = f"{EVENT} string, {KEY} string, {ROW_COUNT} bigint"

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){0,2}")
_PROPERTY = "property:"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, kw_only=True)
class BusinessTable:
    """A table, which of its rows must have a message, and where messages hold its key."""

    url: str
    table: str
    key: str
    where: str = ""
    #: ``keys``, or ``property:NAME``.
    message_key: str = KEYS
    #: A row has one message for each event; without events, it has one message.
    events: tuple[BusinessEvent, ...] = ()

    def __post_init__(self) -> None:
        for option, name in (("--business-table", self.table), ("--key", self.key)):
            if not _NAME.fullmatch(name):
                raise RequestRefused(
                    "bad_option", "must be a plain name", option=option, value=name[:256]
                )
        if self.message_key != KEYS and not self.property_name:
            raise RequestRefused(
                "bad_option",
                "keys or property:NAME",
                option="--message-key",
                value=self.message_key[:256],
            )
        names = [event.which for event in self.events]
        if len(set(names)) < len(names):
            raise RequestRefused(
                "bad_option", "give each event once", option="--event", value=", ".join(names)[:256]
            )

    @property
    def all_events(self) -> tuple[BusinessEvent, ...]:
        """The events to compare; without any, one event that every message matches."""
        return self.events or (BusinessEvent(),)

    @property
    def property_name(self) -> str:
        """The property that holds the key; empty if the key is among the message's keys."""
        is_property = self.message_key.startswith(_PROPERTY)
        return self.message_key.removeprefix(_PROPERTY) if is_property else ""

    @property
    def message_columns(self) -> tuple[str, ...]:
        """The columns of messages that must be read."""
        key = PROPERTIES if self.property_name else KEYS
        place = (TOPIC, QUEUE_ID, QUEUE_OFFSET, VISIBLE_AT_MS, TRANSACTION_ID)
        told = [event.column for event in self.events]
        return tuple(dict.fromkeys((*place, key, *filter(None, told))))

    def counts_sql(self, event: BusinessEvent, further: str = "", limit: str = "") -> str:
        """SQL for the sorted keys of rows that must have this event, and their row counts."""
        given = [f"({one})" for one in (self.where, event.where) if one]
        conditions = [f"{self.key} IS NOT NULL", *given, further]
        return (
            f"SELECT {self.key}, COUNT(*) FROM {self.table}"  # noqa: S608 -- checked names, and the operator's own condition
            f" WHERE {' AND '.join(filter(None, conditions))}"
            f" GROUP BY {self.key} ORDER BY {self.key}{limit}"
        )


def business_rows(spark: SparkSession, table: BusinessTable) -> DataFrame:
    """The keys of the rows (``COUNTED``), for each event. One task reads them, in pages."""

    def read(batches: Batches) -> Batches:
        for _ in batches:
            with _opened(table) as connection:
                for event in table.all_events:
                    yield from _pages(connection, table, event)

    return spark.range(1, numPartitions=1).mapInArrow(read, COUNTED)


@contextmanager
def _opened(table: BusinessTable) -> Iterator[DatabaseConnection]:
    """Open a connection for the block, and turn its errors into ours."""
    try:
        with opener_of(table.url)() as connection:
            yield connection
    except EscrowError:
        raise
    except Exception as error:
        raise Unavailable(
            "business_table_unreadable", table=table.table, cause=str(error)[:500]
        ) from error


def _pages(connection: DatabaseConnection, table: BusinessTable, event: BusinessEvent) -> Batches:
    # Kept as the database returned it: as text it might sort differently.
    last: tuple[Any, ...] = ()
    while True:
        further = f"{table.key} > ?" if last else ""
        sql = table.counts_sql(event, further, f" LIMIT {PAGE_ROWS}")
        with reading(connection, LOCK_WAIT_MS):
            rows = connection.execute(sql, last).rows
        yield _batch(event, rows)
        if len(rows) < PAGE_ROWS:
            return
        last = (rows[-1][0],)


def _batch(event: BusinessEvent, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            EVENT: pa.array([event.which] * len(rows), pa.string()),
            KEY: pa.array([str(row[0]) for row in rows], pa.string()),
            ROW_COUNT: pa.array([row[1] for row in rows], pa.int64()),
        }
    )


def keyed(messages: DataFrame, table: BusinessTable) -> DataFrame:
    """Messages with their events and each of their keys. A message without keys has a null."""
    if table.property_name:
        keys: Column = F.array(F.col(PROPERTIES)[table.property_name])
    else:
        keys = F.array_distinct(F.split(KEYS, " +"))
    known = F.filter(keys, lambda key: key.isNotNull() & (key != ""))
    return by_event(messages, table.all_events).withColumn(KEY, F.explode_outer(known))


def rows_without(rows: DataFrame, by_key: DataFrame) -> DataFrame:
    """Rows with too few or too many messages: COUNTED, and ``messages``."""
    known = by_key.where(F.col(KEY).isNotNull())
    counted = known.groupBy(EVENT, KEY).agg(F.count("*").alias(MESSAGES))
    compared = rows.join(counted, on=[EVENT, KEY], how="left")
    return compared.withColumn(MESSAGES, F.coalesce(MESSAGES, F.lit(0))).where(
        F.col(MESSAGES) != F.col(ROW_COUNT)
    )


def messages_without(by_key: DataFrame, rows: DataFrame) -> DataFrame:
    """Messages without a row for any of their keys, with one of the keys."""
    place = [EVENT, BROKER, TOPIC, QUEUE_ID, QUEUE_OFFSET]
    founded = by_key.join(rows, on=[EVENT, KEY], how="inner").select(*place).distinct()
    return by_key.join(founded, on=place, how="left_anti").dropDuplicates(place)


def told_rows(found: DataFrame, table: BusinessTable) -> DataFrame:
    """Rows in the columns of all findings."""
    is_lost = F.col(MESSAGES) < F.col(ROW_COUNT)
    name = F.when(is_lost, F.lit(FindingName.BUSINESS_ROW_WITHOUT_MESSAGE.value)).otherwise(
        F.lit(FindingName.BUSINESS_ROW_WITH_SEVERAL.value)
    )
    key = F.concat(F.lit(f"{table.table}.{table.key} = "), F.col(KEY))
    counts = F.concat(F.col(ROW_COUNT), F.lit(" rows, "), F.col(MESSAGES), F.lit(" messages"))
    return as_findings(found, name=name, detail=F.concat_ws("; ", key, _event(), counts))


def told_messages(found: DataFrame, table: BusinessTable) -> DataFrame:
    """Messages in the columns of all findings."""
    key = F.coalesce(F.concat(F.lit("its key is "), F.col(KEY)), F.lit("it has no key"))
    place = F.format_string("%s, queue %d, offset %d", TOPIC, QUEUE_ID, QUEUE_OFFSET)
    return as_findings(
        found,
        name=F.lit(FindingName.MESSAGE_WITHOUT_BUSINESS_ROW.value),
        at_ms=F.col(VISIBLE_AT_MS),
        detail=F.concat_ws("; ", place, _event(), key, F.lit(f"no such row in {table.table}")),
    )


def _event() -> Column:
    """The event's name; null if none was given."""
    return F.when(F.col(EVENT) != "", F.concat(F.lit("event "), F.col(EVENT)))
