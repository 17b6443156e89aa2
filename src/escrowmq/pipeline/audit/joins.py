"""The audit's rules as plain joins: DataFrames in, findings out, without actions or a session.

``fold.py`` must agree with this module. It is also a way to run the audit that needs nothing but
equality: each half message is a row, each decided one is a row, and they are joined. The columns
are those of ``protocol/native/rows.py``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit.arrays import COMMITTED, NONE, PARKED, ROLLED_BACK, UNDECIDED
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import FIRST, HALF_OFFSET, HEAD, IS_COPY, STATE_CODE
from escrowmq.pipeline.views.facts import MESSAGE_COUNT as COUNT

RECORDED, OTHER, NAME = "recorded", "other", "name"
LISTED, LISTED_COUNT, TIMES = "listed", "listed_count", "times"

FOUND = (NAME, BROKER, HALF_OFFSET, HEAD, COUNT, RECORDED, OTHER)
"""The columns of a finding about a half message, also used by the fold of ranges."""

_OFFSET = (BROKER, HALF_OFFSET)
_REQUEST = (BROKER, FIRST, HEAD, COUNT, IS_COPY)


def requests(halves: DataFrame, ops: DataFrame) -> DataFrame:
    """Each request that brought half messages, and its state from the records alone."""
    spread = _spread(halves.select(*_REQUEST))
    originals = spread.where(~F.col(IS_COPY))
    # Of carried-forward records of the same half message, the one that begins first contains the
    # others.
    widest = F.min(F.struct(FIRST, -F.col(COUNT), HEAD)).alias("widest")
    carried = (
        spread.where(IS_COPY)
        .join(originals, on=list(_OFFSET), how="left_anti")
        .groupBy(*_OFFSET)
        .agg(widest)
        .select(
            *_OFFSET,
            F.col("widest.first").alias(FIRST),
            F.col("widest.head").alias(HEAD),
            (-F.col("widest.col2")).cast("int").alias(COUNT),
            F.lit(True).alias(IS_COPY),  # noqa: FBT003 -- a column's value
        )
    )
    stored = originals.groupBy(*_OFFSET).agg(F.count("*").alias("stored"))
    held = originals.distinct().unionByName(carried).join(stored, on=list(_OFFSET), how="left")
    judged = held.join(_outcomes(ops), on=list(_OFFSET), how="left")
    is_twice = (F.col("commits") > 1) | (F.col("rollbacks") > 1)
    return (
        judged.groupBy(*_REQUEST)
        .agg(
            _offsets_where(F.col("commits") > 0).alias("committed"),
            _offsets_where(F.col("rollbacks") > 0).alias("rolled_back"),
            _offsets_where(is_twice).alias("twice"),
            (_offsets_where(F.col("stored") > 1) > 0).alias("is_stored_twice"),
        )
        .withColumn(STATE_CODE, _state())
    )


def findings_in_records(folded: DataFrame, halves: DataFrame, ops: DataFrame) -> DataFrame:
    """Findings in half and op records alone."""
    is_both = (F.col("committed") > 0) & (F.col("rolled_back") > 0)
    is_partly = (F.col(STATE_CODE) == NONE) & ~is_both
    unfounded = _without_half(ops.withColumn(HALF_OFFSET, F.col(FIRST)), halves)
    found = (
        (FindingName.DECIDED_TWICE, (F.col("twice") > 0) & ~is_both, F.lit(NONE)),
        (FindingName.DECIDED_BOTH_WAYS, is_both, F.lit(NONE)),
        (FindingName.DECIDED_IN_PART, is_partly, F.lit(NONE)),
        (FindingName.HALF_STORED_TWICE, F.col("is_stored_twice"), F.lit(NONE)),
    )
    alone = _of_offsets(FindingName.OP_WITHOUT_HALF, unfounded, F.col(STATE_CODE))
    return _of_requests(folded, *found).unionByName(alone)


def findings_in_parts(parts: DataFrame) -> DataFrame:
    """Transactions whose requests do not all have the same state.

    ``parts`` are requests with the columns broker, head and recorded.
    """
    states = F.count_distinct(RECORDED).alias("states")
    return (
        parts.groupBy(BROKER, HEAD)
        .agg(states, F.sum(COUNT).alias(COUNT))
        .where(F.col("states") > 1)
        .select(
            F.lit(FindingName.DECIDED_IN_PART.value).alias(NAME),
            BROKER,
            F.col(HEAD).alias(HALF_OFFSET),
            HEAD,
            COUNT,
            F.lit(NONE).alias(RECORDED),
            F.lit(NONE).cast("bigint").alias(OTHER),
        )
    )


def findings_in_table(folded: DataFrame, halves: DataFrame, transactions: DataFrame) -> DataFrame:
    """Findings where the state table disagrees."""
    listed = transactions.select(
        BROKER,
        F.col(HALF_OFFSET).alias(FIRST),
        F.col(STATE_CODE).alias(LISTED),
        F.col(COUNT).alias(LISTED_COUNT),
    )
    later = folded.where(F.col(FIRST) != F.col(HEAD)).groupBy(BROKER, HEAD)
    part_counts = later.agg(F.sum(COUNT).alias("part_count"))
    compared = (
        folded.where(F.col(STATE_CODE) != NONE)
        .join(listed, on=[BROKER, FIRST], how="left")
        .join(part_counts, on=[BROKER, HEAD], how="left")
        .withColumn(LISTED, F.coalesce(LISTED, F.lit(NONE)))
        .withColumn("part_count", F.coalesce("part_count", F.lit(0)))
    )
    unknown = _without_half(transactions, halves)
    state, is_copy, is_head = F.col(STATE_CODE), F.col(IS_COPY), F.col(FIRST) == F.col(HEAD)
    is_open, is_decided = state == UNDECIDED, state > UNDECIDED
    is_listed_open = F.col(LISTED).isin(UNDECIDED, PARKED)
    is_listed_decided = F.col(LISTED).isin(COMMITTED, ROLLED_BACK)
    is_missing = (F.col(LISTED) == NONE) & ((is_decided & ~is_copy) | is_head)
    may_be_older = is_copy & (F.col(LISTED) == COMMITTED)
    is_unfounded = is_open & is_listed_decided & ~may_be_older
    is_split = is_open & ~is_head & is_listed_open
    is_opposite = is_decided & is_listed_decided & (F.col(LISTED) != state)
    agrees = (F.col(LISTED) == state) | (is_open & is_listed_open & is_head)
    expected = F.col(COUNT) + F.when(is_listed_open, F.col("part_count")).otherwise(0)
    is_other_count = agrees & (~is_copy | is_listed_open) & (F.col(LISTED_COUNT) != expected)
    found = (
        (FindingName.HALF_NOT_IN_TABLE, is_missing, F.lit(NONE)),
        (FindingName.DECISION_FORGOTTEN, is_decided & is_listed_open, F.col(LISTED)),
        (FindingName.DECISION_WITHOUT_OP, is_unfounded, F.col(LISTED)),
        (FindingName.TABLE_CONTRADICTS, is_opposite, F.col(LISTED)),
        (FindingName.TABLE_SPLITS, is_split, F.col(LISTED)),
        (FindingName.COUNT_DIFFERS, is_other_count, F.col(LISTED_COUNT)),
    )
    alone = _of_offsets(FindingName.ROW_WITHOUT_HALF, unknown, F.col(STATE_CODE))
    return _of_requests(compared, *found).unionByName(alone)


def findings_in_queues(folded: DataFrame, halves: DataFrame, visible: DataFrame) -> DataFrame:
    """Findings where consumers see too little, too much, or something twice."""
    shown = visible.groupBy(*_OFFSET).agg(F.count("*").alias(TIMES))
    unknown = _without_half(shown, halves)
    is_seen = F.coalesce(F.col(TIMES) > 0, F.lit(False))  # noqa: FBT003 -- a column's value
    seen = (
        _spread(folded)
        .join(shown, on=list(_OFFSET), how="left")
        .groupBy(*_REQUEST, STATE_CODE)
        .agg(
            _offsets_where(is_seen).alias("seen"),
            _offsets_where(F.col(TIMES) > 1).alias("seen_twice"),
            F.sum(TIMES).alias(TIMES),
        )
    )
    is_open_end = F.col(IS_COPY) & (F.col(STATE_CODE) == UNDECIDED)
    is_hidden_by_law = F.col(STATE_CODE).isin(UNDECIDED, ROLLED_BACK) & ~is_open_end
    is_hidden = (F.col(STATE_CODE) == COMMITTED) & (F.col("seen") < F.col(COUNT))
    found = (
        (FindingName.COMMITTED_NOT_VISIBLE, is_hidden, F.col("seen")),
        (FindingName.VISIBLE_NOT_COMMITTED, is_hidden_by_law & (F.col("seen") > 0), F.col("seen")),
        (FindingName.VISIBLE_TWICE, F.col("seen_twice") > 0, F.col(TIMES)),
    )
    alone = _of_offsets(FindingName.VISIBLE_WITHOUT_HALF, unknown, F.col(TIMES))
    return _of_requests(seen, *found).unionByName(alone)


def _spread(spans: DataFrame) -> DataFrame:
    """One row for each half offset."""
    last = F.col(FIRST) + F.col(COUNT) - 1
    return spans.withColumn(HALF_OFFSET, F.explode(F.sequence(F.col(FIRST), last)))


def _without_half(rows: DataFrame, halves: DataFrame) -> DataFrame:
    """The rows whose half offset no record brings."""
    known = _spread(halves.select(*_REQUEST)).select(*_OFFSET).distinct()
    return rows.join(known, on=list(_OFFSET), how="left_anti")


def _outcomes(ops: DataFrame) -> DataFrame:
    decided = _spread(ops.select(BROKER, FIRST, COUNT, STATE_CODE))
    return decided.groupBy(*_OFFSET).agg(
        F.count_if(F.col(STATE_CODE) == COMMITTED).alias("commits"),
        F.count_if(F.col(STATE_CODE) == ROLLED_BACK).alias("rollbacks"),
    )


def _offsets_where(holds: Column) -> Column:
    return F.count_if(F.coalesce(holds, F.lit(False)))  # noqa: FBT003 -- a column's value


def _state() -> Column:
    committed, rolled_back, count = F.col("committed"), F.col("rolled_back"), F.col(COUNT)
    return F.coalesce(
        F.when((committed == 0) & (rolled_back == 0), F.lit(UNDECIDED)),
        F.when((committed == count) & (rolled_back == 0), F.lit(COMMITTED)),
        F.when((rolled_back == count) & (committed == 0), F.lit(ROLLED_BACK)),
        F.lit(NONE),
    )


def _of_requests(judged: DataFrame, *found: tuple[FindingName, Column, Column]) -> DataFrame:
    """The findings that hold for each request: their names, and what the other side says."""
    holding = [
        F.when(
            holds,
            F.struct(F.lit(finding.value).alias(NAME), other.cast("bigint").alias(OTHER)),
        )
        for finding, holds, other in found
    ]
    each = judged.withColumn("found", F.explode(F.array_compact(F.array(*holding))))
    return each.select(
        F.col("found.name").alias(NAME),
        BROKER,
        F.col(FIRST).alias(HALF_OFFSET),
        HEAD,
        F.col(COUNT).cast("bigint").alias(COUNT),
        F.col(STATE_CODE).alias(RECORDED),
        F.col("found.other").alias(OTHER),
    )


def _of_offsets(finding: FindingName, rows: DataFrame, other: Column) -> DataFrame:
    return rows.select(
        F.lit(finding.value).alias(NAME),
        BROKER,
        HALF_OFFSET,
        F.lit(NONE).cast("bigint").alias(HEAD),
        F.lit(1).cast("bigint").alias(COUNT),
        F.lit(NONE).alias(RECORDED),
        other.cast("bigint").alias(OTHER),
    )
