"""The comparisons of an audit: each reads its evidence and returns findings, or why it could not.

The session and the actions are here. The rules are in the called modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit import records
from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.cases import TOLD, told, told_damage
from escrowmq.pipeline.audit.consumers import Progress, progress_cases
from escrowmq.pipeline.audit.findings import Finding
from escrowmq.pipeline.audit.forced import COLUMNS as FORCED_COLUMNS
from escrowmq.pipeline.audit.forced import told_forced
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import Pin
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.views.facts import (
    AGE_MS,
    AT_MS,
    CHECKS_SENT,
    DETAIL,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    STATE_CODE,
    STORED_AT_MS,
    TRANSACTION_ID,
    WAIT_MS,
    half_facts,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.transaction.policy import HOUR_MS, CheckPolicy
from escrowmq.transaction.rules import is_past_retention
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARK_GRACE_MS = 10 * 60_000
"""A pipeline parks old transactions within seconds, but its restart may take longer."""

AGES_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """The subject of an audit, and the evidence to compare it with."""

    brokers: tuple[str, ...]
    #: Leaves out what was stored before.
    since_ms: int = 0
    #: Limits the comparisons that go by topic: the business table and consumers.
    topics: tuple[str, ...] = ()
    #: URLs by name.
    ledgers: Mapping[str, str] = field(default_factory=dict)
    #: A URI; empty means no lake.
    lake: str = ""
    business: BusinessTable | None = None
    consumer_stuck_ms: int = 24 * HOUR_MS
    #: Use plain joins instead of ranges.
    is_plain: bool = False
    #: How many cases of each finding are reported with all facts.
    cases_max: int = 50


@dataclass(frozen=True)
class Work:
    """A running audit."""

    spark: SparkSession
    request: AuditRequest
    pins: Sequence[Pin]

    @property
    def views(self) -> Views:
        """The brokers' evidence."""
        return Views(self.spark, self.pins)

    def none(self) -> DataFrame:
        """An empty DataFrame of findings."""
        return self.spark.createDataFrame([], TOLD)


@dataclass
class Outcome:
    """Result of a comparison."""

    #: ``cases.TOLD``.
    found: DataFrame
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    along: list[tuple[str, int, str, int]] = field(default_factory=list)
    ages_ms: list[int] = field(default_factory=list)
    #: Why an empty result is not a proof.
    unproved: str = ""


def compare_records(work: Work) -> Outcome:
    """Compare half and op records, the state table and the queues."""
    given = records.gather(work.views)
    judge = records.by_joins if work.request.is_plain else records.by_ranges
    judged = judge(work.pins, given)
    found = records.look_again(work.spark, work.pins, judged.found)
    late, ages = undecided(work)
    damaged = records.unreadable(work.views, found)
    forced = told_forced(work.views.ops(*FORCED_COLUMNS)).localCheckpoint(eager=True)
    told_all = told(found).unionByName(late).unionByName(forced)
    if damaged is not None:
        told_all = told_all.unionByName(told_damage(damaged))
    notes = [_horizon(pin) for pin in work.pins if pin.log_start or pin.is_cut]
    return Outcome(
        found=told_all,
        counts=dict(judged.counts),
        notes=notes,
        along=judged.along,
        ages_ms=ages,
    )


def _horizon(pin: Pin) -> str:
    why = "as was asked for" if pin.is_cut else "what retention has deleted is not compared"
    return f"{pin.name}: from half offset {pin.known_from}, log offset {pin.log_start} on: {why}"


def undecided(work: Work) -> tuple[DataFrame, list[int]]:
    """Transactions that should be decided or parked by now, and the ages of all undecided ones."""
    needed = (STATE_CODE, AGE_MS, WAIT_MS, CHECKS_SENT, LEDGER)
    shown = (HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, STORED_AT_MS)
    states = f"{State.PREPARED.label},{State.PARKED.label}"
    open_ones = work.views.transactions(*needed, *shown, states=states)
    is_late = reduce(
        lambda one, other: one | other, [_is_late(open_ones, pin) for pin in work.pins]
    )
    age = F.concat(F.lit("undecided for "), F.floor(F.col(AGE_MS) / HOUR_MS), F.lit(" hours"))
    checks = F.concat(F.col(CHECKS_SENT), F.lit(" checks sent"))
    late = open_ones.where(is_late & (F.col(STATE_CODE) == int(State.PREPARED))).select(
        F.lit(Finding.UNDECIDED_TOO_LONG.value).alias(NAME),
        BROKER,
        HALF_OFFSET,
        TRANSACTION_ID,
        PRODUCER_GROUP,
        F.col(STORED_AT_MS).alias(AT_MS),
        F.concat_ws("; ", age, checks).alias(DETAIL),
    )
    ages = open_ones.select(AGE_MS).orderBy(F.col(AGE_MS).desc()).limit(AGES_MAX).collect()
    return late, [row[AGE_MS] for row in ages]


def _is_late(transactions: DataFrame, pin: Pin) -> Column:
    policy = CheckPolicy(park_after_ms=pin.status.park_after_ms + PARK_GRACE_MS)
    late: Column = is_past_retention(half_facts(transactions), policy)
    return (transactions[BROKER] == pin.name) & late


def compare_consumers(work: Work) -> Outcome:
    """Compare consumers' progress with the queues."""
    seen = Progress(set())
    request = work.request
    cases = [
        (name.value, case.broker, None, None, None, case.at_ms, case.detail)
        for name, case in progress_cases(work.pins, request.topics, request.consumer_stuck_ms, seen)
    ]
    notes = []
    if seen.left_out:
        notes.append(f"of {seen.left_out} queues with a lag the next message was not looked at")
    return Outcome(
        found=work.spark.createDataFrame(cases, TOLD),
        counts={"groups": len(seen.groups), "queues": seen.queues},
        notes=notes,
    )
