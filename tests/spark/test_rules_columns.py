"""Spark and Python give the same answer to every time rule, row by row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.settle.rules import label_column
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import (
    DUES,
    DUES_UNANSWERED,
    Due,
    HalfFacts,
    check_wait_ms,
    due,
)
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

POLICIES = (
    # The defaults, which are RocketMQ's.
    CheckPolicy(),
    # The smallest values: exhausted after one check, past retention at once.
    CheckPolicy(check_after_ms=0, check_interval_ms=1, checks_max=1, park_after_ms=1),
    # The largest values.
    CheckPolicy(
        check_after_ms=DAY_MS,
        check_interval_ms=DAY_MS,
        check_interval_max_ms=DAY_MS,
        check_backoff=10.0,
        checks_max=255,
        park_after_ms=10 * 365 * DAY_MS,
    ),
    # Factors whose powers no double can represent, and which reach their limit slowly.
    CheckPolicy(check_interval_ms=7, check_interval_max_ms=DAY_MS, check_backoff=1.1),
    CheckPolicy(check_interval_ms=1_000, check_interval_max_ms=DAY_MS, check_backoff=1.07),
    # For these, pow() of Java and of C differ by 1 ms after the fourth check.
    CheckPolicy(check_interval_ms=40_000, check_backoff=1.45),
    CheckPolicy(check_interval_ms=1_000_000, check_interval_max_ms=DAY_MS, check_backoff=1.42),
    # An integer factor, as TOML may give it.
    CheckPolicy(check_backoff=2),
)


class Row(NamedTuple):
    """The facts of one half message, as the state table has them."""

    state: int
    age_ms: int
    wait_ms: int
    checks_sent: int
    has_ledger: int


#: The column widths of the state table: narrow types meet Python's literals in every rule.
SCHEMA = (
    "state tinyint not null, age_ms bigint not null, wait_ms bigint not null, "
    "checks_sent smallint not null, has_ledger tinyint not null"
)


def grid() -> list[Row]:
    """Return every state on both sides of every boundary of every policy."""
    ages_ms = sorted({p.park_after_ms + step for p in POLICIES for step in (-1, 0, 1)})
    checks_sent = sorted({p.checks_max + step for p in POLICIES for step in (-1, 0, 1)})
    axes = product(State, ages_ms, (-1, 0, 1), checks_sent, (0, 1))
    return [Row(*(int(value) for value in values)) for values in axes]


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Return values from Hypothesis, the same in every run."""
    values: list[T] = []

    @seed(20_261_104)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def collect(value: T) -> None:
        values.append(value)

    collect()
    return values


def drawn_rows() -> list[Row]:
    """Return any rows that the columns can hold, from the far past to the far future."""
    int64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
    row = st.builds(
        Row,
        state=st.sampled_from([int(state) for state in State]),
        age_ms=int64,
        wait_ms=int64,
        checks_sent=st.integers(min_value=0, max_value=2**15 - 1),
        has_ledger=st.integers(min_value=0, max_value=1),
    )
    return drawn(row, 1_000)


def drawn_policies() -> list[CheckPolicy]:
    """Return random intervals and factors."""
    policy = st.builds(
        CheckPolicy,
        check_interval_ms=st.integers(min_value=1, max_value=HOUR_MS),
        check_interval_max_ms=st.integers(min_value=HOUR_MS, max_value=DAY_MS),
        check_backoff=st.floats(min_value=1.0, max_value=10.0),
    )
    return drawn(policy, 20)


def table_of(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def columns_of(table: DataFrame) -> HalfFacts:
    return HalfFacts(**{name: table[name] for name in Row._fields})


@pytest.mark.parametrize("make_rows", [grid, drawn_rows])
def test_due_column_agrees_with_due(
    spark: SparkSession, make_rows: Callable[[], list[Row]]
) -> None:
    rows = make_rows()
    table = table_of(spark, rows)
    dues = [
        label_column(columns_of(table), policy, DUES).alias(f"due_{n}")
        for n, policy in enumerate(POLICIES)
    ]

    answers = table.select(*Row._fields, *dues).collect()

    facts = len(Row._fields)
    assert sorted(tuple(answer[:facts]) for answer in answers) == sorted(rows)
    assert len(rows) >= 1_000
    seen: set[str] = set()
    for answer in answers:
        half = HalfFacts(**Row(*answer[:facts])._asdict())
        expected = tuple(due(half, policy).value for policy in POLICIES)
        assert tuple(answer[facts:]) == expected, answer
        seen.update(expected)
    # The rows must reach every rule.
    assert seen == {due.value for due in Due}


def test_due_column_agrees_with_due_after_a_look_up_in_vain(spark: SparkSession) -> None:
    rows = grid()
    table = table_of(spark, rows)
    policy = CheckPolicy()
    answers = table.select(
        *Row._fields, label_column(columns_of(table), policy, DUES_UNANSWERED).alias("due")
    ).collect()
    assert len(answers) == len(rows)
    for answer in answers:
        half = HalfFacts(**Row(*answer[:-1])._asdict())
        assert answer[-1] == due(half, policy, DUES_UNANSWERED).value, answer


def least(column: Column, limit: int) -> Column:
    return F.least(column, F.lit(limit))


def whole(column: Column) -> Column:
    # Truncates toward zero, as int() does.
    return column.cast("bigint")


@pytest.mark.parametrize("make_policies", [lambda: list(POLICIES), drawn_policies])
def test_check_wait_column_agrees_with_check_wait_ms(
    spark: SparkSession, make_policies: Callable[[], list[CheckPolicy]]
) -> None:
    policies = make_policies()
    counts = [*range(300), 2**15 - 1]
    table = table_of(spark, [Row(0, 0, 0, count, 0) for count in counts])
    waits = [
        check_wait_ms(table["checks_sent"], policy, least=least, whole=whole).alias(f"wait_{n}")
        for n, policy in enumerate(policies)
    ]

    stage = table.select("checks_sent", *waits)

    assert {kind for name, kind in stage.dtypes if name != "checks_sent"} == {"bigint"}
    answers = {answer[0]: tuple(answer[1:]) for answer in stage.collect()}
    assert answers == {
        count: tuple(check_wait_ms(count, policy) for policy in policies) for count in counts
    }


def test_a_half_without_a_next_check_gets_no_due_instead_of_a_guess(spark: SparkSession) -> None:
    """Facts must not be NULL; if one is, the result is NULL and fails the job."""
    half = HalfFacts(
        state=F.lit(int(State.PREPARED)),
        age_ms=F.lit(0),
        wait_ms=F.lit(None).cast("bigint"),
        checks_sent=F.lit(0),
        has_ledger=F.lit(0),
    )
    answer = spark.range(1).select(label_column(half, CheckPolicy(), DUES)).collect()
    assert answer[0][0] is None
