"""The table of behaviors is complete, and each row names tests that exist or a reason."""

from __future__ import annotations

import re

import pytest

from tests.conformance.proofs import missing_tests
from tests.conformance.table import PAGE, PROVEN, Behaviour, Verdict, page, read
from tests.unit.repository import ROOT

#: Ids of what RocketMQ's own tests assert, of what they leave out, and of its pitfalls.
ASSERTED = [f"8.{number}" for number in range(1, 70)]
LEFT_OUT = [f"8.x{number}" for number in range(1, 14)]
PITFALLS = [f"10.{number}" for number in range(1, 40)]
TABLE = read()


def test_every_behaviour_and_every_pitfall_is_there() -> None:
    assert [number for number in TABLE if number.startswith("8.")] == [*ASSERTED, *LEFT_OUT]
    assert [number for number in TABLE if number.startswith("10.")] == PITFALLS


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_row_names_its_tests_or_its_reason(row: Behaviour) -> None:
    if row.verdict in PROVEN:
        assert row.tests
    else:
        assert not row.tests
    if row.verdict is not Verdict.SAME:
        assert row.ours
    assert len(set(row.tests)) == len(row.tests)


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_row_has_a_concrete_subject(row: Behaviour) -> None:
    for text in (row.does, row.ours):
        assert not re.search(r"\b([Ww]ho(ever)?|[Nn]obody)\b", text)
        assert not text.endswith(".")


def test_every_named_test_exists_and_is_collected() -> None:
    assert missing_tests(test for row in TABLE.values() for test in row.tests) == set()


def test_the_page_is_what_the_table_says() -> None:
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == page(), "run make docs"
