"""Turns found rows into cases: the number for each name, and the facts about the first ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows
from pyspark.sql.window import Window

from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.audit.findings import Finding
from escrowmq.pipeline.audit.joins import NAME, OTHER, RECORDED
from escrowmq.pipeline.audit.report import Case, FoundReport, found_report
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.views.facts import (
    AT_MS,
    DETAIL,
    FIRST,
    HALF_OFFSET,
    LOG_OFFSET,
    PRODUCER_GROUP,
    STORED_AT_MS,
    TRANSACTION_ID,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import MESSAGE_COUNT as COUNT
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import LifeLineAnswer, TransactionHeader
from escrowmq.transaction.states import STATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

TOLD = f"""{NAME} string, {BROKER} string, {HALF_OFFSET} bigint, {TRANSACTION_ID} string,
{PRODUCER_GROUP} string, {AT_MS} bigint, {DETAIL} string"""
"""The columns of all findings."""

TOLD_COLUMNS = (NAME, BROKER, HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, AT_MS, DETAIL)

#: For these findings the other side is a number. For all others it is a state.
_COUNTED = {
    Finding.COUNT_DIFFERS: "counted by the state table",
    Finding.COMMITTED_NOT_VISIBLE: "visible",
    Finding.VISIBLE_NOT_COMMITTED: "visible",
    Finding.VISIBLE_TWICE: "visible",
    Finding.VISIBLE_WITHOUT_HALF: "visible",
}


def told(found: DataFrame) -> DataFrame:
    """Findings about half messages (``joins.FOUND``) in the columns of all findings."""
    counted = F.coalesce(
        *(
            F.when(F.col(NAME) == name.value, F.concat(F.col(OTHER), F.lit(f" {text}")))
            for name, text in _COUNTED.items()
        )
    )
    other = F.coalesce(counted, F.concat(F.lit("the other side: "), state_label(OTHER)))
    messages = F.concat(F.col(COUNT), F.lit(" messages"))
    recorded = F.concat(F.lit("by the records: "), state_label(RECORDED))
    return found.select(
        NAME,
        BROKER,
        HALF_OFFSET,
        F.lit(None).cast("string").alias(TRANSACTION_ID),
        F.lit(None).cast("string").alias(PRODUCER_GROUP),
        F.lit(None).cast("bigint").alias(AT_MS),
        F.concat_ws("; ", messages, recorded, other).alias(DETAIL),
    )


def told_damage(events: DataFrame) -> DataFrame:
    """Damaged parts of the log in the columns of all findings."""
    place = F.concat(F.col(DETAIL), F.lit(" from log offset "), F.col(LOG_OFFSET), F.lit(" on"))
    return events.select(
        F.lit(Finding.UNREADABLE.value).alias(NAME),
        BROKER,
        F.lit(None).cast("bigint").alias(HALF_OFFSET),
        F.lit(None).cast("string").alias(TRANSACTION_ID),
        F.lit(None).cast("string").alias(PRODUCER_GROUP),
        AT_MS,
        place.alias(DETAIL),
    )


def state_label(name: str) -> Column:
    """A state's name; null if there is none."""
    return F.coalesce(*(F.when(F.col(name) == int(one), F.lit(one.label)) for one in STATES))


def reports(found: DataFrame, views: Views, *, cases_max: int) -> list[FoundReport]:
    """The reports: for each name the number of findings, and the facts about the first ones."""
    totals = {row[NAME]: row["count"] for row in found.groupBy(NAME).count().collect()}
    if not totals:
        return []
    order = Window.partitionBy(NAME).orderBy(
        F.col(BROKER).asc_nulls_last(), F.col(HALF_OFFSET).asc_nulls_last(), DETAIL
    )
    first = found.withColumn("place", F.row_number().over(order)).where(F.col("place") <= cases_max)
    cases: dict[str, list[Case]] = {name: [] for name in totals}
    for row in first.orderBy(NAME, "place").collect():
        cases[row[NAME]].append(
            Case(
                broker=row[BROKER],
                half_offset=row[HALF_OFFSET],
                transaction_id=row[TRANSACTION_ID],
                producer_group=row[PRODUCER_GROUP],
                at_ms=row[AT_MS],
                detail=row[DETAIL] or "",
            )
        )
    return [
        found_report(name, totals[name], _with_facts(cases[name], views))
        for name in Finding
        if name in totals
    ]


def _with_facts(cases: Sequence[Case], views: Views) -> list[Case]:
    """Ask the brokers for each case's transaction, producer group and decider."""
    told = []
    for case in cases:
        address = views.addresses.get(case.broker or "")
        if address is None or case.half_offset is None:
            told.append(case)
        else:
            with OwnCalls(address) as calls:
                told.append(_with_life_line(case, calls))
    unknown = [one.half_offset for one in told if one.transaction_id is None and one.broker]
    halves = _records_of(views, [one for one in unknown if one is not None])
    return [_with_record(one, halves.get((one.broker, one.half_offset))) for one in told]


def _records_of(views: Views, half_offsets: list[int]) -> dict[tuple[str | None, int | None], Row]:
    """The log's records of half messages that the broker itself has no facts about."""
    if not half_offsets:
        return {}
    halves = views.halves(FIRST, TRANSACTION_ID, PRODUCER_GROUP, STORED_AT_MS)
    found = halves.where(F.col(FIRST).isin(half_offsets)).collect()
    return {(row[BROKER], row[FIRST]): row for row in found}


def _with_record(case: Case, half: Row | None) -> Case:
    if half is None or case.transaction_id:
        return case
    return msgspec.structs.replace(
        case,
        transaction_id=half[TRANSACTION_ID] or None,
        producer_group=half[PRODUCER_GROUP],
        at_ms=case.at_ms or half[STORED_AT_MS],
    )


def _with_life_line(case: Case, calls: OwnCalls) -> Case:
    assert case.half_offset is not None
    header = TransactionHeader(half_offset=case.half_offset)
    try:
        answer = calls.call(OwnCode.LIFE_LINE, header)
    except EscrowError as error:
        # This may be the fault itself.
        detail = f"{case.detail}; the broker knows nothing more: {error.code}"
        return msgspec.structs.replace(case, detail=detail)
    known = answer.header
    assert isinstance(known, LifeLineAnswer)
    events = {event.event: event for event in answer.rows}
    ended = events.get("committed") or events.get("rolled_back")
    held = events.get("held")
    last = ended or held
    return msgspec.structs.replace(
        case,
        transaction_id=case.transaction_id or known.transaction_id or None,
        producer_group=case.producer_group or known.producer_group,
        at_ms=case.at_ms or (last.at_ms if last else None),
        by=ended.by if ended else None,
    )
