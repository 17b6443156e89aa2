"""The comparison with ledger tables: which database has which ledger, and what its rows say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.database.databases import cutting, reading
from escrowmq.client.ledger.marks import read_ledger
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.pipeline.audit import ledger
from escrowmq.pipeline.audit.arrays import COMMITTED
from escrowmq.pipeline.audit.compare import AuditRun, ComparisonResult
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import since, take_pins
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.views.facts import DECIDED_AT_MS, LEDGER, STATE_CODE, TRANSACTION_ID

ANSWER_S = 10.0
OTHERS_MAX = 10
"""How many of the ledgers that were not read are named."""


@dataclass(frozen=True)
class ReportedLedgers:
    """The ledgers that the databases report."""

    #: URLs by UUID.
    urls: dict[str, str] = field(default_factory=dict, repr=False)
    #: Why a ledger cannot be compared, by name.
    silent: dict[str, EscrowError] = field(default_factory=dict)


def find_ledgers(ledgers: Mapping[str, str]) -> ReportedLedgers:
    """Ask each database which ledger it has."""
    found = ReportedLedgers()
    uuids: dict[str, str] = {}
    for name, url in ledgers.items():
        try:
            uuids[name] = _uuid(url)
        except EscrowError as error:
            found.silent[name] = error
    times = Counter(uuids.values())
    for name, uuid in uuids.items():
        if times[uuid] > 1:
            text = "several databases have this ledger; all but one are copies"
            found.silent[name] = RequestRefused("ledger_twice", text, ledger_uuid=uuid)
        else:
            found.urls[uuid] = ledgers[name]
    return found


def _uuid(url: str) -> str:
    with (
        ledger.opened(url) as connection,
        cutting(connection, time.monotonic() + ANSWER_S),
        reading(connection),
    ):
        uuid, is_standby = read_ledger(connection)
    if is_standby:
        raise RequestRefused(
            "ledger_standby", "the database is a standby and may lack rows that the primary has"
        )
    return uuid


def compare_ledgers(work: AuditRun, urls: Mapping[str, str]) -> ComparisonResult:
    """Compare the rows of these ledgers, by UUID, with the transactions that name them."""
    spark, views = work.spark, work.views
    named = views.halves(*ledger.OF_HALVES).where(F.col(LEDGER) != "")
    all_named = ledger.with_outcome(named, views.ops(*ledger.OF_OPS))
    all_named = all_named.persist(StorageLevel.MEMORY_AND_DISK)
    rows = ledger.ledger_rows(spark, urls).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        transactions = all_named.where(F.col(LEDGER).isin(*urls))
        from_ms = ledger.rows_from_ms(work.pins)
        found = ledger.judged(transactions, rows, from_ms=from_ms)
        found = _look_again(work, urls, transactions, found.localCheckpoint(eager=True))
        return ComparisonResult(
            found=ledger.told_ledgers(found),
            counts={
                "ledgers": len(urls),
                "rows": rows.count(),
                "transactions": transactions.count(),
            },
            notes=[*_swept(transactions, rows), *_not_read(all_named, urls)],
        )
    finally:
        all_named.unpersist()
        rows.unpersist()


def _look_again(
    work: AuditRun, urls: Mapping[str, str], transactions: DataFrame, found: DataFrame
) -> DataFrame:
    """Look again, because rows are deleted and transactions arrive during the read."""
    names = {row[NAME] for row in found.select(NAME).distinct().collect()}
    if FindingName.LEDGER_ROW_MISSING.value in names:
        again = ledger.ledger_rows(work.spark, urls)
        found = ledger.without_swept(found, transactions, again)
    if FindingName.LEDGER_ROW_UNKNOWN.value in names:
        now = take_pins([pin.address for pin in work.pins], since_ms=work.request.since_ms)
        later = Views(work.spark, since(work.pins, now)).halves(TRANSACTION_ID, LEDGER)
        from_ms = ledger.rows_from_ms(now)
        found = ledger.without_later(found, later, from_ms=from_ms)
    return found.localCheckpoint(eager=True)


def _swept(transactions: DataFrame, rows: DataFrame) -> list[str]:
    """Notes on ledgers that a janitor has swept."""
    committed = transactions.where(F.col(STATE_CODE) == COMMITTED)
    compared = committed.join(rows, on=[LEDGER, TRANSACTION_ID], how="left")
    outcome = F.col(ledger.OUTCOME)
    swept = compared.groupBy(LEDGER).agg(
        F.count_if(outcome.isNull()).alias("gone"),
        F.min(F.when(outcome.isNotNull(), F.col(DECIDED_AT_MS))).alias("kept_since_ms"),
    )
    return [
        f"{row[LEDGER]}: {row['gone']} committed transactions no longer have a row, perhaps because"
        f" a janitor deleted it; the oldest with its row was decided {_at(row['kept_since_ms'])}"
        for row in swept.orderBy(LEDGER).collect()
        if row["gone"]
    ]


def _not_read(named: DataFrame, urls: Mapping[str, str]) -> list[str]:
    others = named.where(~F.col(LEDGER).isin(*urls)).groupBy(LEDGER).count()
    found = others.orderBy(F.col("count").desc(), LEDGER).limit(OTHERS_MAX).collect()
    return [
        f"{row[LEDGER]}: {row['count']} transactions that name it are not compared" for row in found
    ]


def _at(ms: int | None) -> str:
    return "never" if ms is None else datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ")
