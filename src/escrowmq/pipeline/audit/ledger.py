"""Compares ledger tables with the brokers: the outcomes of transactions in users' databases.

A row that says committed was written after its half messages were durable. So the broker has them,
either committed or still undecided. A committed transaction has its row until a janitor deletes it.
A janitor sweeps the whole ledger and deletes every row whose transaction is decided. So the oldest
decision whose row still exists tells since when no janitor swept the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows
from pyspark.sql.window import Window

from escrowmq.client.database.block import MAX_DURATION_MS
from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import opener_of
from escrowmq.client.ledger import janitor
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.pipeline.audit.arrays import COMMITTED, ROLLED_BACK, UNDECIDED
from escrowmq.pipeline.audit.cases import as_findings, when
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import Pin
from escrowmq.pipeline.views.facts import (
    APP_ID,
    DECIDED_AT_MS,
    DECIDED_BY,
    FIRST,
    HALF_OFFSET,
    HEAD,
    LEDGER,
    PRODUCER_GROUP,
    STATE_CODE,
    STORED_AT_MS,
    TRANSACTION_ID,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER

SWEEP_MS_MAX = 15 * 60_000
"""The longest time that a janitor needs to sweep a ledger."""

CLOCKS_APART_MS_MAX = 15 * 60_000
"""The greatest clock difference. A row has the client's time, a half message the broker's."""

OUTCOME, WRITTEN_AT_MS, KEPT_SINCE_MS = "outcome", "written_at_ms", "kept_since_ms"
ROWS = f"{LEDGER} string, {TRANSACTION_ID} string, {OUTCOME} string, {WRITTEN_AT_MS} bigint"
JUDGED = (
    NAME,
    BROKER,
    HALF_OFFSET,
    LEDGER,
    TRANSACTION_ID,
    PRODUCER_GROUP,
    OUTCOME,
    WRITTEN_AT_MS,
    DECIDED_AT_MS,
    DECIDED_BY,
)
_TRANSACTION = (LEDGER, TRANSACTION_ID)

OF_HALVES = (FIRST, HEAD, TRANSACTION_ID, LEDGER, PRODUCER_GROUP, STORED_AT_MS)
OF_OPS = (FIRST, HEAD, STATE_CODE, DECIDED_AT_MS, DECIDED_BY, APP_ID)
"""The columns that ``with_outcome`` needs."""


def ledger_rows(spark: SparkSession, ledgers: Mapping[str, str]) -> DataFrame:
    """All rows of the ledgers, given as URLs by UUID. One task reads each ledger, in pages."""
    by_number = sorted(ledgers.items())

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _pages(*by_number[number])

    return spark.range(0, len(ledgers), numPartitions=len(ledgers)).mapInArrow(read, ROWS)


@contextmanager
def opened(url: str) -> Iterator[DatabaseConnection]:
    """Open a connection to a ledger's database for the block, and turn its errors into ours."""
    try:
        with opener_of(url)() as connection:
            yield connection
    except EscrowError:
        raise
    except Exception as error:
        raise Unavailable("ledger_unreachable", cause=str(error)[:500]) from error


def _pages(uuid: str, url: str) -> Iterator[pa.RecordBatch]:
    with opened(url) as connection:
        for page in janitor.pages(connection, uuid):
            ids, outcomes, times = zip(*page.rows, strict=True)
            yield pa.record_batch(
                {
                    LEDGER: pa.array([uuid] * len(page.rows), pa.string()),
                    TRANSACTION_ID: pa.array(ids, pa.string()),
                    OUTCOME: pa.array(outcomes, pa.string()),
                    WRITTEN_AT_MS: pa.array(times, pa.int64()),
                }
            )


def with_outcome(halves: DataFrame, ops: DataFrame) -> DataFrame:
    """Each transaction that names a ledger, and its broker's decision."""
    # A request may be in the log twice if it was carried forward, and a transaction may have
    # several requests.
    transactions = halves.groupBy(BROKER, HEAD, TRANSACTION_ID, LEDGER, PRODUCER_GROUP).agg(
        F.min(STORED_AT_MS).alias(STORED_AT_MS)
    )
    # Batches of the sink have no ledger.
    decisions = (
        ops.where(F.col(APP_ID).isNull())
        .select(BROKER, HEAD, STATE_CODE, DECIDED_AT_MS, DECIDED_BY)
        .distinct()
    )
    return (
        transactions.join(decisions, on=[BROKER, HEAD], how="left")
        .withColumn(STATE_CODE, F.coalesce(STATE_CODE, F.lit(UNDECIDED)))
        .withColumnRenamed(HEAD, HALF_OFFSET)
    )


def judged(transactions: DataFrame, rows: DataFrame, *, from_ms: int) -> DataFrame:
    """Where ledger and broker seem to disagree (``JUDGED``).

    ``from_ms`` is the horizon: for rows written before it, the half messages may be deleted.
    """
    compared = transactions.join(rows, on=list(_TRANSACTION), how="full")
    kept_since = (
        compared.where(_is_kept()).groupBy(LEDGER).agg(F.min(DECIDED_AT_MS).alias(KEPT_SINCE_MS))
    )
    known = compared.join(F.broadcast(kept_since), on=LEDGER, how="left")
    has_row, has_half = F.col(OUTCOME).isNotNull(), F.col(HALF_OFFSET).isNotNull()
    outcome, state = F.col(OUTCOME), F.col(STATE_CODE)
    is_opposite = ((outcome == LedgerOutcome.COMMITTED.value) & (state == ROLLED_BACK)) | (
        (outcome == LedgerOutcome.ROLLED_BACK.value) & (state == COMMITTED)
    )
    is_unswept = F.col(DECIDED_AT_MS) > F.col(KEPT_SINCE_MS) + SWEEP_MS_MAX
    is_missing = has_half & ~has_row & (F.col(STATE_CODE) == COMMITTED) & is_unswept
    is_recent = F.col(WRITTEN_AT_MS) >= from_ms
    is_unknown = ~has_half & (F.col(OUTCOME) == LedgerOutcome.COMMITTED.value) & is_recent
    name = F.coalesce(
        when(FindingName.LEDGER_CONTRADICTS, is_opposite),
        when(FindingName.LEDGER_ROW_MISSING, is_missing),
        when(FindingName.LEDGER_ROW_UNKNOWN, is_unknown),
    )
    return known.withColumn(NAME, name).where(F.col(NAME).isNotNull()).select(*JUDGED)


def without_swept(found: DataFrame, transactions: DataFrame, rows_again: DataFrame) -> DataFrame:
    """Drop rows that a janitor may have deleted during the read.

    Janitors go in the order of transaction ids. A janitor that deleted a missing row had passed all
    lower ids before. So if a later read (``rows_again``) still has an older row among those, no
    janitor came by.
    """
    is_missing = F.col(NAME) == FindingName.LEDGER_ROW_MISSING.value
    is_committed = F.col(OUTCOME) == LedgerOutcome.COMMITTED.value
    kept = transactions.where(F.col(STATE_CODE) == COMMITTED).join(
        rows_again.where(is_committed), on=list(_TRANSACTION), how="left_semi"
    )
    missing = found.where(is_missing)
    below = (
        Window.partitionBy(LEDGER)
        .orderBy(TRANSACTION_ID)
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    witnessed = (
        kept.select(*_TRANSACTION, F.col(DECIDED_AT_MS).alias("kept"), F.lit(None).alias("gone"))
        .unionByName(
            missing.select(
                *_TRANSACTION,
                F.lit(None).cast("bigint").alias("kept"),
                F.col(DECIDED_AT_MS).alias("gone"),
            )
        )
        .withColumn(KEPT_SINCE_MS, F.min("kept").over(below))
        .where(F.col("gone") > F.col(KEPT_SINCE_MS) + SWEEP_MS_MAX)
        .select(*_TRANSACTION)
        .distinct()
    )
    sure = missing.join(witnessed, on=list(_TRANSACTION), how="left_semi")
    return found.where(~is_missing).unionByName(sure)


def without_later(found: DataFrame, later: DataFrame, *, from_ms: int) -> DataFrame:
    """Drop rows whose half messages came ``later``, or are now beyond the horizon."""
    is_unknown = F.col(NAME) == FindingName.LEDGER_ROW_UNKNOWN.value
    unknown = found.where(is_unknown & (F.col(WRITTEN_AT_MS) >= from_ms))
    unknown = unknown.join(later.select(*_TRANSACTION), on=list(_TRANSACTION), how="left_anti")
    return found.where(~is_unknown).unionByName(unknown.select(*JUDGED))


def told_ledgers(found: DataFrame) -> DataFrame:
    """Findings in the columns of all findings."""
    at_ms = F.coalesce(DECIDED_AT_MS, WRITTEN_AT_MS)
    return as_findings(found, at_ms=at_ms, detail=_detail())


def _is_kept() -> Column:
    return (F.col(STATE_CODE) == COMMITTED) & (F.col(OUTCOME) == LedgerOutcome.COMMITTED.value)


def rows_from_ms(pins: Sequence[Pin]) -> int:
    """Since when the logs must have each row's half messages."""
    cut = [pin.known_from_ms for pin in pins if not pin.is_whole]
    # A block writes its ledger row after its half messages, at most MAX_DURATION_MS later.
    return max(cut) + MAX_DURATION_MS + CLOCKS_APART_MS_MAX if cut else 0


def _detail() -> Column:
    decided = F.when(
        F.col(DECIDED_BY).isNotNull(), F.concat(F.lit("decided by "), F.col(DECIDED_BY))
    )
    row = F.coalesce(F.col(OUTCOME), F.lit("no row"))
    return F.concat_ws(
        "; ", F.concat(F.lit("the ledger "), F.col(LEDGER), F.lit(": "), row), decided
    )
