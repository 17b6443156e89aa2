"""The alert rules and the dashboard of the examples use metrics that exist."""

from __future__ import annotations

import json
import re

from escrowmq.broker.pages.metric_table import METRICS
from escrowmq.pipeline.service.telemetry import Telemetry
from tests.unit.repository import ROOT

TEXT = (ROOT / "examples/prometheus/alerts.yml").read_text(encoding="utf-8")
RULES = re.split(r"\n      - alert: ", TEXT)[1:]
#: Metrics that Prometheus itself adds about the scrape.
OF_PROMETHEUS = {"up"}


def known() -> set[str]:
    names = {name for one in METRICS for name in (one.name, one.also) if name}
    names |= {f"{one.name}_bucket" for one in METRICS if one.kind == "histogram"}
    pipeline = Telemetry(master="local", started_at_ms=0).metrics()
    return names | set(re.findall(r"^# TYPE (\w+)", pipeline, re.MULTILINE)) | OF_PROMETHEUS


def check(expression: str) -> None:
    plain = re.sub(r"\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)", "", expression)
    named = set(re.findall(r"\b(?:escrowmq|rocketmq|process)_\w+|\bup\b", plain))
    assert named, expression
    assert named <= known(), expression


def test_every_metric_in_a_rule_exists() -> None:
    for rule in RULES:
        (expression,) = re.findall(r"^        expr: (.+)$", rule, re.MULTILINE)
        check(expression)


def test_every_metric_on_the_dashboard_exists() -> None:
    board = json.loads((ROOT / "examples/prometheus/dashboard.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            check(target["expr"])


def test_every_label_in_a_rule_is_one_of_its_metric() -> None:
    labels = {one.name: set(one.labels) for one in METRICS}
    found = re.findall(r"((?:escrowmq|rocketmq)_\w+)\{([^}]*)\}", TEXT)
    assert found
    for name, matchers in found:
        assert set(re.findall(r"(\w+)=", matchers)) <= labels[name]


def test_every_rule_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule.partition("\n")[0] for rule in RULES]
    assert len(names) == len(set(names))
    for name, rule in zip(names, RULES, strict=True):
        assert re.search(r"^        labels: \{severity: (page|ticket)\}$", rule, re.MULTILINE), name
        assert re.search(r'^          summary: ".+"$', rule, re.MULTILINE), name
        above = TEXT.partition(f"      - alert: {name}\n")[0].rstrip("\n").splitlines()[-1]
        assert above.lstrip().startswith("# "), f"{name}: say above it what to do"


def test_every_required_alert_has_a_rule() -> None:
    for name in (
        "escrowmq_oldest_undecided_seconds",
        "escrowmq_parked_total",
        "escrowmq_contradictions_total",
        "escrowmq_pipeline_away_seconds",
        "escrowmq_checks_stalled_seconds",
        "escrowmq_disk_level",
        "escrowmq_clock_doubtful",
        "escrowmq_deletion_waits",
        "escrowmq_retention_waits",
        "escrowmq_undecided_bytes",
        "escrowmq_names_max",
        "escrowmq_flush_seconds_bucket",
        "rocketmq_consumer_lag_latency_milliseconds",
        "escrowmq_ready",
        "escrowmq_backup_failures_in_a_row",
        "escrowmq_backup_overdue_seconds",
        "escrowmq_alert_notices_total",
    ):
        assert name in TEXT
