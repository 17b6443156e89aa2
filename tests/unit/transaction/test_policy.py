"""The settings of an operator, and their bounds."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.policy import _BOUNDS, CheckPolicy

CHOICES = {
    "checked_by": ("auto", "broker", "pipeline", "off"),
    "after_last_check": ("park", "rollback"),
    "state_store": ("table", "mapped", "sql"),
}


def test_the_defaults_are_rocketmqs() -> None:
    policy = CheckPolicy()
    assert (policy.check_after_ms, policy.check_interval_ms, policy.checks_max) == (
        6_000,
        30_000,
        15,
    )


def test_every_setting_has_bounds_or_choices() -> None:
    settings = {field.name for field in fields(CheckPolicy)}
    # A URL has no bounds; the database's driver checks it.
    assert {name for name, _, _ in _BOUNDS} == settings - CHOICES.keys() - {"state_url"}


@pytest.mark.parametrize("name", CHOICES)
def test_a_setting_with_choices_takes_only_these(name: str) -> None:
    for choice in CHOICES[name]:
        assert getattr(CheckPolicy(**{name: choice}), name) == choice  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match=f"must be {' or '.join(CHOICES[name])}") as caught:
        CheckPolicy(**{name: "sometimes"})  # type: ignore[arg-type]
    assert caught.value.fields == {"key": f"transaction.{name}", "value": "sometimes"}


@pytest.mark.parametrize(("name", "low", "high"), _BOUNDS)
def test_a_setting_is_taken_at_its_bounds_and_refused_beyond(
    name: str, low: float, high: float
) -> None:
    # The interval may not be longer than its limit, so each of the two needs a matching other.
    partner: dict[str, dict[str, Any]] = {
        "check_interval_max_ms": {"check_interval_ms": 1},
        "check_interval_ms": {"check_interval_max_ms": 24 * 3_600_000},
    }
    others = partner.get(name, {})
    for value in (low, high):
        assert getattr(CheckPolicy(**{**others, name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(RequestRefused) as caught:
            CheckPolicy(**{**others, name: value})
        assert caught.value.code == "bad_config"
        assert caught.value.fields == {"key": f"transaction.{name}", "value": value}


def test_the_interval_must_not_be_longer_than_its_limit() -> None:
    with pytest.raises(RequestRefused) as caught:
        CheckPolicy(check_interval_ms=600_001)
    assert caught.value.fields == {"key": "transaction.check_interval_ms", "value": 600_001}


def test_only_the_policy_fields_that_the_broker_tells_are_taken() -> None:
    told = SimpleNamespace(check_after_ms=1, check_backoff=2.0, checks_max=3, broker="b")
    assert CheckPolicy.told_by(told) == CheckPolicy(
        check_after_ms=1, check_backoff=2.0, checks_max=3
    )


@pytest.mark.parametrize(
    ("checked_by", "is_so"), [("auto", True), ("pipeline", True), ("broker", False), ("off", False)]
)
def test_a_policy_says_whether_pipelines_check(checked_by: Any, is_so: bool) -> None:  # noqa: ANN401, FBT001
    assert CheckPolicy(checked_by=checked_by).is_for_pipelines is is_so
