"""The time rules on Python numbers. ``tests/spark`` proves that Columns agree."""

from __future__ import annotations

import ast
import inspect
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction import rules
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

DAY_MS = 86_400_000
POLICY = CheckPolicy(checks_max=3, park_after_ms=10_000)

PREPARED, COMMITTED, ROLLED_BACK, PARKED = State

TRUTH_TABLE = [
    # state, age_ms, wait_ms, checks_sent, has_ledger, due
    # Just stored: the producer still has its time.
    (PREPARED, 0, 6_000, 0, 0, Due.WAIT),
    # One millisecond is left.
    (PREPARED, 6_000, 1, 0, 0, Due.WAIT),
    # Due now.
    (PREPARED, 6_000, 0, 0, 0, Due.ASK),
    # Overdue: the settler was busy or down.
    (PREPARED, 6_500, -500, 0, 0, Due.ASK),
    # Asked once; the answer may still come.
    (PREPARED, 7_000, 29_000, 1, 0, Due.WAIT),
    # One check is left.
    (PREPARED, 7_000, 0, 2, 0, Due.ASK),
    # The last check was sent, and waits for its answer as long as the earlier ones did.
    (PREPARED, 7_000, 1, 3, 0, Due.WAIT),
    # That wait is over too.
    (PREPARED, 7_000, 0, 3, 0, Due.PARK),
    # More checks were sent than the policy allows now: an operator lowered it.
    (PREPARED, 7_000, 0, 9, 0, Due.PARK),
    # A ledger is not read before the producer had its time either.
    (PREPARED, 7_000, 1, 0, 1, Due.WAIT),
    # Then the ledger is read, and no producer is asked.
    (PREPARED, 7_000, 0, 0, 1, Due.LOOK_UP),
    # Checks sent earlier do not keep the ledger from being read.
    (PREPARED, 7_000, 0, 3, 1, Due.LOOK_UP),
    # One millisecond too young to be parked.
    (PREPARED, 9_999, 0, 0, 0, Due.ASK),
    # Past retention without a single check: no producer was online.
    (PREPARED, 10_000, 0, 0, 0, Due.PARK),
    # Retention does not wait for the next check.
    (PREPARED, 10_000, 1, 0, 0, Due.PARK),
    # But a ledger that may know the outcome is read once more first, due or not.
    (PREPARED, 10_000, 0, 0, 1, Due.LOOK_UP),
    (PREPARED, 10_000, 1, 3, 1, Due.LOOK_UP),
    # The clock went backwards: the age is negative, and the check still comes in time.
    (PREPARED, -1, 6_001, 0, 0, Due.WAIT),
    # Decided ones are left alone, whatever their other facts.
    (COMMITTED, 10_000, 0, 3, 1, Due.NOTHING),
    (COMMITTED, 0, 1, 0, 0, Due.NOTHING),
    (ROLLED_BACK, 10_000, 0, 3, 1, Due.NOTHING),
    (ROLLED_BACK, 0, 1, 0, 0, Due.NOTHING),
    # Parked ones wait for an operator: not asked, not looked up, not parked again.
    (PARKED, 10_000, 0, 3, 1, Due.NOTHING),
    (PARKED, 0, 0, 0, 0, Due.NOTHING),
    (PARKED, 0, 0, 0, 1, Due.NOTHING),
]


@pytest.mark.parametrize(
    ("state", "age_ms", "wait_ms", "checks_sent", "has_ledger", "expected"), TRUTH_TABLE
)
def test_the_first_rule_that_holds_decides(  # noqa: PLR0917 -- one per column
    state: State, age_ms: int, wait_ms: int, checks_sent: int, has_ledger: int, expected: Due
) -> None:
    half = HalfFacts(
        state=state,
        age_ms=age_ms,
        wait_ms=wait_ms,
        checks_sent=checks_sent,
        has_ledger=has_ledger,
    )
    assert due(half, POLICY) is expected


def test_the_order_of_the_rules_is_the_promised_one() -> None:
    assert [(due.value, holds.__name__) for due, holds in DUES] == [
        ("nothing", "is_decided"),
        ("nothing", "is_parked"),
        ("look_up", "is_for_its_ledger"),
        ("park", "is_past_retention"),
        ("wait", "is_waiting"),
        ("park", "is_exhausted"),
        ("ask", "is_overdue"),
    ]


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        # The ledger is read again in the next round.
        (9_999, Due.WAIT),
        # An unreadable ledger must not keep the transaction open.
        (10_000, Due.PARK),
    ],
)
def test_a_half_whose_ledger_gave_no_outcome_waits_until_it_is_parked(
    age_ms: int, expected: Due
) -> None:
    half = HalfFacts(state=PREPARED, age_ms=age_ms, wait_ms=0, checks_sent=0, has_ledger=1)
    assert due(half, POLICY) is Due.LOOK_UP
    assert due(half, POLICY, DUES_UNANSWERED) is expected


@given(
    state=st.sampled_from(State),
    age_ms=st.integers(),
    wait_ms=st.integers(),
    checks_sent=st.integers(min_value=0),
    has_ledger=st.integers(min_value=0, max_value=1),
)
def test_every_half_is_due_for_something(
    state: State, age_ms: int, wait_ms: int, checks_sent: int, has_ledger: int
) -> None:
    half = HalfFacts(
        state=state,
        age_ms=age_ms,
        wait_ms=wait_ms,
        checks_sent=checks_sent,
        has_ledger=has_ledger,
    )
    undecided = state is State.PREPARED
    assert (due(half, POLICY) is Due.NOTHING) != undecided


def test_the_first_check_comes_check_after_ms_after_the_broker_stored_the_half() -> None:
    engine = MemoryEngine()
    held = engine.prepare("t", msgspec.structs.replace(message(), born_at_ms=1))
    half = engine.core.half(held.half_offset)
    assert half is not None
    assert half.next_at_ms == engine.clock.now_ms() + engine.policy.check_after_ms


def test_with_the_defaults_every_wait_is_thirty_seconds() -> None:
    waits = {check_wait_ms(checks_sent, CheckPolicy()) for checks_sent in range(1, 256)}
    assert waits == {30_000}


@pytest.mark.parametrize(
    ("checks_sent", "wait_ms"),
    [
        # The first repeat waits the plain interval.
        (1, 30_000),
        # From then on the wait doubles,
        (2, 60_000),
        (3, 120_000),
        (5, 480_000),
        # until it meets the limit, and stays there.
        (6, 600_000),
        (7, 600_000),
        (255, 600_000),
    ],
)
def test_the_wait_grows_by_the_factor_up_to_the_limit(checks_sent: int, wait_ms: int) -> None:
    assert check_wait_ms(checks_sent, CheckPolicy(check_backoff=2.0)) == wait_ms


@pytest.mark.parametrize(
    ("policy", "checks_sent", "wait_ms"),
    [
        # Truncated, not rounded: 1.5 ms and 2.25 ms.
        (CheckPolicy(check_interval_ms=1, check_backoff=1.5), 2, 1),
        (CheckPolicy(check_interval_ms=1, check_backoff=1.5), 3, 2),
        # The factor may be an int.
        (CheckPolicy(check_interval_ms=1, check_backoff=10), 4, 1_000),
        # The limit equals the interval, so the wait cannot grow.
        (CheckPolicy(check_interval_max_ms=30_000, check_backoff=10.0), 2, 30_000),
        # The largest policy at the last check: a double still holds the product.
        (
            CheckPolicy(check_interval_ms=DAY_MS, check_interval_max_ms=DAY_MS, check_backoff=10.0),
            255,
            DAY_MS,
        ),
        # More than can be sent: the exponent stops growing, and the result stays at the limit.
        (CheckPolicy(check_backoff=2.0), 100_000, 600_000),
        # No check was sent, so the wait has not grown.
        (CheckPolicy(check_backoff=2.0), 0, 30_000),
    ],
)
def test_the_wait_at_its_boundaries(policy: CheckPolicy, checks_sent: int, wait_ms: int) -> None:
    assert check_wait_ms(checks_sent, policy) == wait_ms


@given(
    checks_sent=st.integers(min_value=1, max_value=255),
    interval_ms=st.integers(min_value=1, max_value=DAY_MS),
    backoff=st.floats(min_value=1.0, max_value=10.0),
)
def test_the_wait_is_the_formula_to_the_millisecond(
    checks_sent: int, interval_ms: int, backoff: float
) -> None:
    """Doubles may miss the exact product slightly, so the truncated wait by at most 1 ms."""
    policy = CheckPolicy(
        check_interval_ms=interval_ms, check_interval_max_ms=DAY_MS, check_backoff=backoff
    )
    exact_ms: Fraction = interval_ms * Fraction(backoff) ** (checks_sent - 1)
    wait_ms = check_wait_ms(checks_sent, policy)
    assert type(wait_ms) is int
    assert abs(wait_ms - min(int(exact_ms), DAY_MS)) <= 1
    assert wait_ms >= interval_ms


#: Syntax that a Column does not support, or treats differently from a bool.
FORBIDDEN = (
    ast.BoolOp,
    ast.Not,
    ast.Invert,
    ast.If,
    ast.IfExp,
    ast.In,
    ast.NotIn,
    ast.Is,
    ast.IsNot,
)
FORBIDDEN_CALLS = {"min", "max", "any", "all", "bool", "int", "round", "abs"}


def slips(source: str) -> list[str]:
    """List code in `source` that would fail on a Column, except in ``due``, which runs
    in Python.
    """
    found: list[str] = []
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if function.name == "due":
            continue
        for node in (child for line in function.body for child in ast.walk(line)):
            called = node.func if isinstance(node, ast.Call) else None
            if (
                isinstance(node, FORBIDDEN)
                # a < b < c is an implicit `and`.
                or (isinstance(node, ast.Compare) and len(node.ops) > 1)
                or (isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS)
            ):
                found.append(f"{function.name}: {ast.unparse(node) or type(node).__name__}")
    return found


def test_rules_use_operators_only() -> None:
    assert slips(inspect.getsource(rules)) == []


@pytest.mark.parametrize(
    "expression",
    ["a and b", "not a", "~a", "a if b else c", "a in b", "0 < a < b", "max(a, b)", "a is b"],
)
def test_a_slip_in_a_rule_would_be_found(expression: str) -> None:
    assert slips(f"def is_wrong(a, b, c):\n    return {expression}\n")
