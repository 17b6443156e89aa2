"""Made-up figures of demo runs."""

from __future__ import annotations

from escrowmq.demo.figures import (
    Audited,
    DecisionCounts,
    DemoRun,
    Figures,
    MethodFigures,
    OnPostgres,
    ProgressSample,
)
from escrowmq.demo.schedule import Kill, Moment, Victim
from escrowmq.demo.shop import DOWNSTREAM
from escrowmq.demo.step_times import OrderStep, StepTimes
from escrowmq.pipeline.audit.findings import ComparedEvidence as Evidence
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.report import AuditReport, ComparisonReport, found_report

STEPS = {
    "plain": StepTimes(
        orders=20,
        median_ms={
            OrderStep.WAIT: 1.0,
            OrderStep.INSERT: 0.1,
            OrderStep.COMMIT: 0.9,
            OrderStep.SEND: 3.0,
        },
    ),
    "transactional": StepTimes(
        orders=30,
        median_ms={
            OrderStep.HOLD: 3.5,
            OrderStep.WAIT: 2.0,
            OrderStep.INSERT: 0.1,
            OrderStep.LEDGER_ROW: 0.2,
            OrderStep.COMMIT: 0.9,
            OrderStep.DECIDE: 4.0,
        },
    ),
}


def run(name: str, **more: object) -> DemoRun:
    kills = [
        Kill(at_s=1.0, victim=Victim.SERVICE, moment=Moment.AFTER_COMMIT),
        Kill(at_s=2.0, victim=Victim.BROKER, moment=Moment.RANDOM),
    ]
    given: dict[str, object] = {
        "orders": 200,
        "took_s": 4.0,
        "service_starts_s": 1.5,
        "broker_away_s": 0.5,
        "steps": STEPS[name],
        "settled_after_s": 2.5,
        "paid": 200,
        "messages": 200,
        "kills": kills,
        "samples": [
            ProgressSample(at_s=0.0, paid=0, acted=0),
            ProgressSample(at_s=4.0, paid=200, acted=180),
        ],
        "is_through": True,
        "wrong_effects": dict.fromkeys(DOWNSTREAM, 0),
    }
    return DemoRun(name=name, **(given | more))  # type: ignore[arg-type]


def audit(*found: tuple[FindingName, int], failed: str = "") -> AuditReport:
    compared = ComparisonReport(
        compared=Evidence.LEDGER, not_compared=failed, is_failed=bool(failed)
    )
    return AuditReport(
        started_at_ms=0,
        took_ms=1,
        brokers=[],
        comparisons=[compared],
        findings=[found_report(name, total, []) for name, total in found],
    )


LOST = FindingName.BUSINESS_ROW_WITHOUT_MESSAGE
DOUBLED = FindingName.BUSINESS_ROW_WITH_SEVERAL


def figures(
    *,
    transactional: DemoRun | None = None,
    of_transactional: AuditReport | None = None,
    undecided: int = 0,
    on_postgres: OnPostgres | None = None,
) -> Figures:
    decided = DecisionCounts(
        committed_by_producer=198,
        rolled_back_by_producer=0,
        committed_by_ledger=2,
        rolled_back_by_fence=3,
        ages_ms=[900, 5_000, 70_000],
        undecided=undecided,
    )
    return Figures(
        seed=7,
        plain=run("plain", messages=198, wrong_effects=dict.fromkeys(DOWNSTREAM, 3)),
        transactional=transactional or run("transactional"),
        audited=Audited(
            plain=audit((LOST, 3), (DOUBLED, 1)),
            transactional=of_transactional or audit(),
            decided=decided,
        ),
        on_postgres=on_postgres,
    )


def compared(**more: object) -> MethodFigures:
    given: dict[str, object] = {
        "orders": 200,
        "took_s": 2.0,
        "agreed_s": 4.0,
        "orders_lock_ms_median": 1.5,
        "orders_lock_ms_p99": 20.0,
        "others_lock_ms_median": 2.5,
        "lock_ms_an_order": 6.0,
        "do_agree": True,
    }
    return MethodFigures(**(given | more))  # type: ignore[arg-type]


def on_postgres(**of_xa: object) -> OnPostgres:
    slow = compared(orders=50)
    return OnPostgres(
        ours=compared(), xa=compared(**of_xa), slow_ms=20, slow_ours=slow, slow_xa=slow
    )
