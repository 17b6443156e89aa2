"""The reference page is generated from the code and matches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.transaction.rules import DUES
from escrowmq.transaction.states import TRANSITIONS
from tools.reference.states import dues_table, mermaid

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "transaction-states.md"


def page_block(name: str) -> str:
    """Return the part of the page between the two marks called `name`."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- {name}: generated -->\n")
    block, end, _ = rest.partition(f"\n<!-- {name}: end -->")
    assert before
    assert begin
    assert end
    return block


def test_the_page_shows_the_diagram_of_the_transitions() -> None:
    assert page_block("diagram") == f"```mermaid\n{mermaid()}\n```"


def test_the_page_shows_the_time_rules_in_their_order() -> None:
    assert page_block("rules") == dues_table()


def test_the_diagram_has_one_arrow_per_transition() -> None:
    head, *arrows = mermaid().splitlines()
    assert head == "stateDiagram-v2"
    assert len(arrows) == len(TRANSITIONS)


@pytest.mark.parametrize(
    "arrow",
    [
        # The start of a transaction.
        "[*] --> prepared: prepare",
        # A state of two words keeps its label.
        "parked --> rolled_back: rollback",
    ],
)
def test_an_arrow_names_states_by_their_labels(arrow: str) -> None:
    assert f"    {arrow}" in mermaid().splitlines()


def test_every_rule_says_when_it_holds() -> None:
    assert all(holds.__doc__ for _, holds in DUES)
