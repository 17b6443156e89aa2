"""The comparisons of an audit: each reads its evidence and returns findings, or why it could not.

The session and the actions are here. The rules are in the called modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit import records
from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.cases import TOLD, as_findings, told, told_damage
from escrowmq.pipeline.audit.consumers import ExaminedGroups, progress_cases
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.forced import COLUMNS as FORCED_COLUMNS
from escrowmq.pipeline.audit.forced import told_forced
from escrowmq.pipeline.audit.pins import Pin
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.views.facts import (
    AGE_MS,
    CHECKS_SENT,
    FACT_COLUMNS,
    HALF_OFFSET,
    PRODUCER_GROUP,
    STATE_CODE,
    STORED_AT_MS,
    TRANSACTION_ID,
    half_facts,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.policy import HOUR_MS, CheckPolicy
from escrowmq.transaction.rules import is_past_retention
from escrowmq.transaction.states import State

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
    #: Most cases of each kind of finding that are reported with all facts.
    cases_max: int = 50


@dataclass(frozen=True)
class AuditRun:
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
class ComparisonResult:
    """Result of a comparison."""

    #: ``cases.TOLD``.
    found: DataFrame
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    along: list[tuple[str, int, str, int]] = field(default_factory=list)
    ages_ms: list[int] = field(default_factory=list)
    #: Why an empty result is not a proof.
    unproved: str = ""


def compare_records(work: AuditRun) -> ComparisonResult:
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
    return ComparisonResult(
        found=told_all,
        counts=dict(judged.counts),
        notes=[_horizon(pin) for pin in work.pins if pin.log_start or pin.is_cut],
        along=judged.along,
        ages_ms=ages,
    )


def _horizon(pin: Pin) -> str:
    why = "because --since asks for it" if pin.is_cut else "because retention deleted what is older"
    start = f"half offset {pin.known_from} and log offset {pin.log_start}"
    return f"{pin.name}: the comparison starts at {start}, {why}"


def undecided(work: AuditRun) -> tuple[DataFrame, list[int]]:
    """Transactions that should be decided or parked by now, and the ages of all undecided ones."""
    shown = (HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, STORED_AT_MS)
    states = f"{State.PREPARED.label},{State.PARKED.label}"
    open_ones = work.views.transactions(*FACT_COLUMNS, *shown, states=states)
    is_late = reduce(
        lambda one, other: one | other, [_is_late(open_ones, pin) for pin in work.pins]
    )
    age = F.concat(F.lit("undecided for "), F.floor(F.col(AGE_MS) / HOUR_MS), F.lit(" hours"))
    checks = F.concat(F.col(CHECKS_SENT), F.lit(" checks sent"))
    late = as_findings(
        open_ones.where(is_late & (F.col(STATE_CODE) == int(State.PREPARED))),
        name=F.lit(FindingName.UNDECIDED_TOO_LONG.value),
        at_ms=F.col(STORED_AT_MS),
        detail=F.concat_ws("; ", age, checks),
    )
    ages = open_ones.select(AGE_MS).orderBy(F.col(AGE_MS).desc()).limit(AGES_MAX).collect()
    return late, [row[AGE_MS] for row in ages]


def _is_late(transactions: DataFrame, pin: Pin) -> Column:
    policy = CheckPolicy(park_after_ms=pin.status.park_after_ms + PARK_GRACE_MS)
    late: Column = is_past_retention(half_facts(transactions), policy)
    return (transactions[BROKER] == pin.name) & late


def compare_consumers(work: AuditRun) -> ComparisonResult:
    """Compare consumers' progress with the queues."""
    seen = ExaminedGroups(set())
    request = work.request
    cases = [
        (name.value, case.broker, None, None, None, case.at_ms, case.detail)
        for name, case in progress_cases(work.pins, request.topics, request.consumer_stuck_ms, seen)
    ]
    notes = []
    if seen.left_out:
        notes.append(
            f"the audit did not examine the next message of {seen.left_out} lagging queues"
        )
    return ComparisonResult(
        found=work.spark.createDataFrame(cases, TOLD),
        counts={"groups": len(seen.groups), "queues": seen.queues},
        notes=notes,
    )


def compare_rounds(work: AuditRun) -> ComparisonResult:
    """Collect what the pipeline's last comparison of half and op records found at each broker."""
    cases, notes, counts = [], [], Counter[str]()
    for pin in work.pins:
        if not pin.status.compared_at_ms:
            continue
        with NativeCalls(pin.address) as calls:
            rows = list(calls.rows(NativeCode.LIST_COMPARISON))
        for row in rows:
            if row.finding is None:
                continue
            states = f"by the records: {row.recorded or 'none'}; listed: {row.listed or 'none'}"
            detail = f"{row.finding}; {states}"
            name = FindingName.ROUND_DIFFERS.value
            cases.append((name, pin.name, row.half_offset, None, None, row.found_at_ms, detail))
        for row in rows[:1]:
            counts.update(open_requests=row.open_requests, differences=row.differences)
            notes.append(
                f"{pin.name}: compared up to log offset {row.log_offset}; "
                f"every half message below half offset {row.decided_before} is decided"
            )
    found = work.spark.createDataFrame(cases, TOLD)
    return ComparisonResult(found=found, counts=dict(counts), notes=notes)
