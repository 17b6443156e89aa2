"""Turns found rows into cases: the number for each name, and the facts about the first ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows
from pyspark.sql.window import Window

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.audit.findings import FindingName
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
from escrowmq.protocol.native.headers import LifeLineAnswer, TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import STATES

_TYPES = {
    NAME: "string",
    BROKER: "string",
    HALF_OFFSET: "bigint",
    TRANSACTION_ID: "string",
    PRODUCER_GROUP: "string",
    AT_MS: "bigint",
    DETAIL: "string",
}
TOLD = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
"""The columns of all findings."""

#: For these findings the other side is a number. For all others it is a state.
_COUNTED = {
    FindingName.COUNT_DIFFERS: "counted by the state table",
    FindingName.COMMITTED_NOT_VISIBLE: "visible",
    FindingName.VISIBLE_NOT_COMMITTED: "visible",
    FindingName.VISIBLE_TWICE: "visible",
    FindingName.VISIBLE_WITHOUT_HALF: "visible",
}


def as_findings(rows: DataFrame, **given: Column) -> DataFrame:
    """Rows in the columns of all findings (``TOLD``).

    A column that is not given is the row's own, or NULL if the rows do not have it.
    """
    columns = {name: F.col(name) for name in rows.columns} | given
    return rows.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _TYPES.items())
    )


def when(finding: FindingName, holds: Column) -> Column:
    """The finding's name where the condition holds; NULL elsewhere."""
    return F.when(holds, F.lit(finding.value))


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
    return as_findings(found, detail=F.concat_ws("; ", messages, recorded, other))


def told_damage(events: DataFrame) -> DataFrame:
    """Damaged parts of the log in the columns of all findings."""
    place = F.concat(F.col(DETAIL), F.lit(" from log offset "), F.col(LOG_OFFSET), F.lit(" on"))
    return as_findings(events, name=F.lit(FindingName.UNREADABLE.value), detail=place)


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
        for name in FindingName
        if name in totals
    ]


def _with_facts(cases: Sequence[Case], views: Views) -> list[Case]:
    """Ask the brokers for each case's transaction, producer group and decider."""
    told = [_with_life_line(case, views.addresses.get(case.broker or "")) for case in cases]
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


def _with_life_line(case: Case, address: str | None) -> Case:
    if address is None or case.half_offset is None:
        return case
    try:
        with NativeCalls(address) as calls:
            header = TransactionHeader(half_offset=case.half_offset)
            answer = calls.call(NativeCode.LIFE_LINE, header)
    except EscrowError as error:
        # This may be the fault itself.
        detail = f"{case.detail}; the broker knows nothing more: {error.code}"
        return msgspec.structs.replace(case, detail=detail)
    known = answer.header
    assert isinstance(known, LifeLineAnswer)
    events = {event.event: event for event in answer.rows}
    ended = events.get("committed") or events.get("rolled_back")
    last = ended or events.get("held")
    return msgspec.structs.replace(
        case,
        transaction_id=case.transaction_id or known.transaction_id or None,
        producer_group=case.producer_group or known.producer_group,
        at_ms=case.at_ms or (last.at_ms if last else None),
        by=ended.by if ended else None,
    )
