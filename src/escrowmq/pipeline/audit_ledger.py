"""Ledger tables against the brokers: what the users' databases say became of transactions.

A row that says committed was written after its half messages were durable, so the broker has them,
and has them as committed or still undecided.  A committed transaction has its row, until a janitor
takes it: that one goes through the whole ledger and takes every row whose transaction is decided.
So the oldest decision whose row is still there tells since when no janitor came by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client import janitor
from escrowmq.client.database_block import MAX_DURATION_MS
from escrowmq.client.databases import opener_of
from escrowmq.client.ledger_checks import Outcome
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.pipeline.audit import NAME
from escrowmq.pipeline.audit_arrays import COMMITTED, ROLLED_BACK, UNDECIDED
from escrowmq.pipeline.audit_cases import TOLD_COLUMNS
from escrowmq.pipeline.audit_findings import Finding
from escrowmq.pipeline.facts import (
    APP_ID,
    AT_MS,
    DECIDED_AT_MS,
    DECIDED_BY,
    DETAIL,
    HALF_OFFSET,
    HEAD,
    LEDGER,
    PRODUCER_GROUP,
    STATE,
    STORED_AT_MS,
    TRANSACTION_ID,
)
from escrowmq.pipeline.facts import BROKER_NAME as BROKER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SWEEP_MS_MAX = 15 * 60_000
"""A janitor that goes through a ledger is done with it after so long."""

CLOCKS_APART_MS_MAX = 15 * 60_000
"""A row has the time of the client's clock, a half message that of the broker's."""

OUTCOME, WRITTEN_AT_MS, KEPT_SINCE_MS = "outcome", "written_at_ms", "kept_since_ms"
ROWS = f"{LEDGER} string, {TRANSACTION_ID} string, {OUTCOME} string, {WRITTEN_AT_MS} bigint"
_TRANSACTION = (LEDGER, TRANSACTION_ID)


def ledger_rows(spark: SparkSession, ledgers: Mapping[str, str]) -> DataFrame:
    """All rows of the ledgers, which are URLs by UUID; a task reads each, in pages."""
    read = _reader(sorted(ledgers.items()))
    return spark.range(0, len(ledgers), numPartitions=len(ledgers)).mapInArrow(read, ROWS)


def _reader(
    ledgers: Sequence[tuple[str, str]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _pages(*ledgers[number])

    return read


def _pages(uuid: str, url: str) -> Iterator[pa.RecordBatch]:
    try:
        with opener_of(url)() as link:
            for page in janitor.pages(link, uuid):
                ids, outcomes, times = zip(*page, strict=True)
                yield pa.record_batch(
                    {
                        LEDGER: pa.array([uuid] * len(page), pa.string()),
                        TRANSACTION_ID: pa.array(ids, pa.string()),
                        OUTCOME: pa.array(outcomes, pa.string()),
                        WRITTEN_AT_MS: pa.array(times, pa.int64()),
                    }
                )
    except EscrowError:
        raise
    except Exception as error:
        raise Unavailable("ledger_unreachable", cause=str(error)[:500]) from error


def with_outcome(halves: DataFrame, ops: DataFrame) -> DataFrame:
    """Each transaction that names a ledger, and what its broker decided."""
    # A request may stand in the log twice, carried forward; a transaction may have several.
    transactions = halves.groupBy(BROKER, HEAD, TRANSACTION_ID, LEDGER, PRODUCER_GROUP).agg(
        F.min(STORED_AT_MS).alias(STORED_AT_MS)
    )
    # Of batches nobody has a ledger.
    decisions = (
        ops.where(F.col(APP_ID).isNull())
        .select(BROKER, HEAD, STATE, DECIDED_AT_MS, DECIDED_BY)
        .distinct()
    )
    return (
        transactions.join(decisions, on=[BROKER, HEAD], how="left")
        .withColumn(STATE, F.coalesce(STATE, F.lit(UNDECIDED)))
        .withColumnRenamed(HEAD, HALF_OFFSET)
    )


def findings_in_ledgers(
    transactions: DataFrame, rows: DataFrame, *, rows_from_ms: int
) -> DataFrame:
    """Where ledger and broker disagree.

    ``rows_from_ms`` is the horizon: of rows that were written before, the half messages may be
    deleted.
    """
    is_kept = (F.col(STATE) == COMMITTED) & (F.col(OUTCOME) == Outcome.COMMITTED.value)
    compared = transactions.join(rows, on=list(_TRANSACTION), how="full")
    kept_since = (
        compared.where(is_kept).groupBy(LEDGER).agg(F.min(DECIDED_AT_MS).alias(KEPT_SINCE_MS))
    )
    judged = compared.join(F.broadcast(kept_since), on=LEDGER, how="left")
    has_row, has_half = F.col(OUTCOME).isNotNull(), F.col(HALF_OFFSET).isNotNull()
    is_opposite = ((F.col(OUTCOME) == Outcome.COMMITTED.value) & (F.col(STATE) == ROLLED_BACK)) | (
        (F.col(OUTCOME) == Outcome.ROLLED_BACK.value) & (F.col(STATE) == COMMITTED)
    )
    is_unswept = F.col(DECIDED_AT_MS) > F.col(KEPT_SINCE_MS) + SWEEP_MS_MAX
    is_missing = has_half & ~has_row & (F.col(STATE) == COMMITTED) & is_unswept
    is_recent = F.col(WRITTEN_AT_MS) >= rows_from_ms
    is_unknown = ~has_half & (F.col(OUTCOME) == Outcome.COMMITTED.value) & is_recent
    name = F.coalesce(
        _when(Finding.LEDGER_CONTRADICTS, is_opposite),
        _when(Finding.LEDGER_ROW_MISSING, is_missing),
        _when(Finding.LEDGER_ROW_UNKNOWN, is_unknown),
    )
    return (
        judged.withColumn(NAME, name)
        .where(F.col(NAME).isNotNull())
        .select(
            NAME,
            BROKER,
            HALF_OFFSET,
            TRANSACTION_ID,
            PRODUCER_GROUP,
            F.coalesce(DECIDED_AT_MS, WRITTEN_AT_MS).alias(AT_MS),
            _detail().alias(DETAIL),
        )
        .select(*TOLD_COLUMNS)
    )


def rows_from_ms(known: Sequence[tuple[bool, int]]) -> int:
    """Since when each row's half messages must be in the logs.

    ``known`` is of each broker whether its log is read from its first record on, and the time of
    the first half message that was read.
    """
    cut = [at_ms for is_whole, at_ms in known if not is_whole]
    # The row comes after its half messages, by no more than a block may last.
    return max(cut) + MAX_DURATION_MS + CLOCKS_APART_MS_MAX if cut else 0


def _when(finding: Finding, holds: Column) -> Column:
    return F.when(holds, F.lit(finding.value))


def _detail() -> Column:
    decided = F.when(
        F.col(DECIDED_BY).isNotNull(), F.concat(F.lit("decided by "), F.col(DECIDED_BY))
    )
    row = F.coalesce(F.col(OUTCOME), F.lit("no row"))
    return F.concat_ws(
        "; ", F.concat(F.lit("the ledger "), F.col(LEDGER), F.lit(": "), row), decided
    )
