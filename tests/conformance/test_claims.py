"""The table of claims is complete, and every test that it names exists."""

from __future__ import annotations

import re

import pytest

from tests.conformance.claims import COUNT, PAGE, Claim, Verdict, page, read
from tests.conformance.proofs import missing_tests
from tests.unit.repository import ROOT

TABLE = read()


def test_every_claim_is_there() -> None:
    assert list(TABLE) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("row", TABLE.values(), ids=map(str, TABLE))
def test_a_claim_has_its_proof_and_a_difference_its_reason(row: Claim) -> None:
    assert row.tests
    assert len(set(row.tests)) == len(row.tests)
    assert bool(row.ours) == (row.verdict is not Verdict.AS_DESIGNED)
    assert not row.note or row.verdict is Verdict.AS_DESIGNED


@pytest.mark.parametrize("row", TABLE.values(), ids=map(str, TABLE))
def test_a_claim_has_a_concrete_subject(row: Claim) -> None:
    for text in (row.says, row.ours, row.note):
        assert not re.search(r"\b([Ww]ho(ever)?|[Nn]obody)\b", text)
        assert not text.endswith(".")


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(test for row in TABLE.values() for test in row.tests) == set()


def test_the_page_is_what_the_table_says() -> None:
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == page(), "run make docs"
