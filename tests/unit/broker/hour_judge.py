"""Judges the log of an hour in which two processes checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import ParkReason, check_wait_ms

DECISIONS = ("committed", "rolled_back")


def judge_log(events: Sequence[Any], policy: CheckPolicy, groups: Mapping[int, str]) -> None:
    """Raise unless each transaction and the budget of each group were respected."""
    by_head: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        if event.event != "visible":
            by_head[event.head].append(event)
    for mine in by_head.values():
        judge_decisions(mine)
        judge_checks(mine, policy)
        judge_parking(mine, policy)
    judge_budget(events, policy, groups)


def judge_decisions(mine: Iterable[Any]) -> None:
    """A transaction is decided in one frame, and nothing happens to it after that."""
    decided_at = None
    for event in mine:
        if event.event in DECISIONS:
            assert decided_at in (None, event.log_offset), f"decided twice: {event}"
            decided_at = event.log_offset
        else:
            assert decided_at is None, f"after its decision: {event}"


def judge_checks(mine: Iterable[Any], policy: CheckPolicy) -> None:
    """Checks count up by one to the maximum, and none is sent before its time."""
    number, next_at_ms = 0, 0
    for event in mine:
        if event.event == "resumed":
            number = next_at_ms = 0
        if event.event == "asked":
            number += 1
            assert event.checks_sent == number <= policy.checks_max, f"miscounted: {event}"
            assert event.at_ms >= next_at_ms, f"asked twice: {event}"
            next_at_ms = event.at_ms + check_wait_ms(number, policy)


def judge_parking(mine: Iterable[Any], policy: CheckPolicy) -> None:
    """The rules park a transaction for a reason that came after it was held or resumed."""
    since_ms = checks = 0
    for event in mine:
        if event.event in ("held", "resumed"):
            since_ms, checks = event.at_ms, 0
        checks += event.event == "asked"
        if event.event == "parked" and event.detail == ParkReason.EXHAUSTED:
            assert checks == policy.checks_max, f"not exhausted: {event}"
        if event.event == "parked" and event.detail == ParkReason.PAST_RETENTION:
            assert event.at_ms - since_ms >= policy.park_after_ms, f"too young: {event}"


def judge_budget(events: Iterable[Any], policy: CheckPolicy, groups: Mapping[int, str]) -> None:
    """At no time are more checks of a group unanswered than its budget allows."""
    #: By group and head, when the next check is due.
    unanswered: dict[str, dict[int, int]] = defaultdict(dict)
    for event in events:
        if event.event == "visible":
            continue
        mine = unanswered[groups[event.head]]
        mine.pop(event.head, None)
        if event.event == "asked":
            mine[event.head] = event.at_ms + check_wait_ms(event.checks_sent, policy)
            in_flight = [head for head, until_ms in mine.items() if event.at_ms < until_ms]
            assert len(in_flight) <= policy.check_budget_per_group, f"too many: {in_flight}"
