"""Decisions have one form, and their list and their links to each other are complete."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tests.unit.repository import ADR, CODE, headings, links, pages, prose

WORDS_MAX = 600
SECTIONS = [
    "Status",
    "Context",
    "Decision",
    "Consequences",
    "What would change our mind",
    "How it is checked",
]
DAY = r"(?P<day>\d{4}-\d{2}-\d{2})"
OTHER = r"\[ADR-(?P<number>\d{4})\]\((?P<file>[^)]+)\)"
#: The first line of a status, and the notes below it.
STATUS = re.compile(rf"(?P<what>Proposed|Accepted|Superseded by {OTHER}) {DAY}")
SUPERSEDES = re.compile(rf"- Supersedes {OTHER}: .+")
AMENDED = re.compile(rf"- Amended {DAY}( by {OTHER})?: .+")
AMENDS = re.compile(rf"- Amends {OTHER}: .+")
NOTES = (AMENDED, AMENDS, SUPERSEDES)

DECISIONS = sorted(path for path in ADR.glob("*.md") if path.name != "README.md")


def number_of(decision: Path) -> str:
    return decision.name.partition("-")[0]


def status(decision: Path) -> tuple[re.Match[str], list[str]]:
    """Return the first line of the status, and its notes."""
    text = prose(decision).partition("## Status\n")[2].partition("\n## ")[0].strip()
    first, _, rest = text.partition("\n\n")
    found = STATUS.fullmatch(first)
    assert found, f"{first!r}: write Accepted and the day, or Superseded by [ADR-NNNN](FILE)"
    notes = [" ".join(note.split()) for note in re.split(r"\n(?=- )", rest) if note]
    return found, notes


def named(decision: Path, note: re.Pattern[str]) -> set[str]:
    """Return the files of the other decisions that such notes of a decision name."""
    found = [note.fullmatch(one) for one in status(decision)[1]]
    return {one["file"] for one in found if one and one["file"]}


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [number_of(path) for path in DECISIONS] == [
        f"{number:04}" for number in range(1, len(DECISIONS) + 1)
    ]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_form(decision: Path) -> None:
    assert headings(decision, 1)[0].startswith(f"ADR-{number_of(decision)}: ")
    assert headings(decision, 2) == SECTIONS
    # The status grows with each amendment, so it does not count.
    text = prose(decision)
    text = text.replace(text.partition("## Status")[2].partition("## Context")[0], "")
    assert len(text.split()) <= WORDS_MAX, "at most a page"


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_status_has_its_form(decision: Path) -> None:
    first, notes = status(decision)
    days = [date.fromisoformat(first["day"])]
    for note in notes:
        found = next((one for kind in NOTES if (one := kind.fullmatch(note))), None)
        assert found, f"{note!r} is no note of a status"
        kind = found.groupdict()
        days += [date.fromisoformat(kind["day"])] if "day" in kind else []
        assert kind["file"] is None or kind["file"].startswith(f"{kind['number']}-")
    assert days == sorted(days), "the oldest first"


def test_two_decisions_of_which_one_changes_the_other_name_each_other() -> None:
    changed = {(path.name, by) for path in DECISIONS for by in named(path, AMENDED)}
    changes = {(other, path.name) for path in DECISIONS for other in named(path, AMENDS)}
    assert changed == changes
    heads = {path.name: status(path)[0]["file"] for path in DECISIONS}
    superseded = {(name, by) for name, by in heads.items() if by}
    supersedes = {(other, path.name) for path in DECISIONS for other in named(path, SUPERSEDES)}
    assert superseded == supersedes


def test_the_list_of_decisions_is_complete() -> None:
    page = ADR / "README.md"
    assert [ADR / link for link in links(page)] == DECISIONS
    listed = [line for line in prose(page).splitlines() if line.startswith("| [")]
    rows = [row(path) for path in DECISIONS]
    assert listed == rows, "the list must be:\n" + "\n".join(rows)


def row(decision: Path) -> str:
    """Return the line of a decision in the list."""
    first, notes = status(decision)
    title = headings(decision, 1)[0].partition(": ")[2]
    others = sorted(f"ADR-{name[:4]}" for name in named(decision, AMENDED))
    is_amended = any(AMENDED.fullmatch(note) for note in notes)
    words = re.sub(r"\[(ADR-\d{4})\]\([^)]+\)", r"\1", first["what"])
    words += ", amended" if is_amended else ""
    words += f" by {', '.join(others)}" if others else ""
    link = f"[ADR-{number_of(decision)}]({decision.name})"
    return f"| {link} | {title} | {first['day']} | {words} |"


def test_cited_decisions_exist() -> None:
    numbers = {number_of(path) for path in DECISIONS}
    cited = {
        number
        for path in [*CODE, *pages()]
        for number in re.findall(r"ADR-(\d{4})", path.read_text(encoding="utf-8"))
    }
    assert cited <= numbers
