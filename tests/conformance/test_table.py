"""The table of behaviors is complete, and every test that it names exists."""

from __future__ import annotations

import ast

import pytest

from tests.conformance.table import PAGE, Behaviour, Verdict, page, read
from tests.unit.repository import ROOT, parse

#: Ids of what RocketMQ's own tests assert, of what they leave out, and of its pitfalls.
ASSERTED = [f"8.{number}" for number in range(1, 70)]
LEFT_OUT = [f"8.x{number}" for number in range(1, 14)]
PITFALLS = [f"10.{number}" for number in range(1, 40)]
TABLE = read()


def test_every_behaviour_and_every_pitfall_is_there() -> None:
    assert [number for number in TABLE if number.startswith("8.")] == [*ASSERTED, *LEFT_OUT]
    assert [number for number in TABLE if number.startswith("10.")] == PITFALLS


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_row_has_its_proof_or_its_reason(row: Behaviour) -> None:
    if row.verdict in (Verdict.SAME, Verdict.BETTER):
        assert row.test
    if row.verdict is not Verdict.SAME:
        assert row.ours


def test_every_test_that_is_named_exists() -> None:
    named = {row.test for row in TABLE.values() if row.test}
    there = {
        f"{path}::{node.name}"
        for path in {test.partition("::")[0] for test in named}
        for node in ast.walk(parse(ROOT / "tests" / path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert named <= there, named - there


def test_the_page_is_what_the_table_says() -> None:
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == page(), "run make docs"
