"""The table of claims about the design of transactional messages, as data and as a page.

``python -m tests.conformance.claims docs/reference/claims.md`` writes the page.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from enum import StrEnum
from pathlib import Path

import msgspec

CLAIMS = Path(__file__).with_name("claims.toml")
PAGE = "docs/reference/claims.md"
COUNT = 162

_HEAD = """\
# Claims of the design

Written by `make docs` from `tests/conformance/claims.toml`; edit that instead.

Five documents describe the transactional messages of RocketMQ in all of their designs. Each claim
of them is a row here, in our words:

- **as designed**: it is so here, in some rows only with a setting that the row names
- **better**: RocketMQ's way loses, doubles or hides something, and ours does not
- **different**: the same purpose, by other means; the row says how and why

The tests in the last column prove the row; their paths are below `tests/`. {counts}.
"""
#: The first claim of each chapter, and its title.
_CHAPTERS = {
    1: "Transactional messages since 4.3",
    29: "The same, along the source code",
    48: "Life cycle and limits in RocketMQ 5",
    95: "The check service in detail",
    130: "From producer to broker; state in files and in a database",
    161: "Language and engine",
}


class Verdict(StrEnum):
    """How our design relates to a claim."""

    AS_DESIGNED = "as_designed"
    BETTER = "better"
    DIFFERENT = "different"

    @property
    def shown(self) -> str:
        """The verdict as words."""
        return self.value.replace("_", " ")


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One claim."""

    says: str
    verdict: Verdict
    #: The paths of tests under ``tests/``, with ``::`` before each test's name.
    tests: tuple[str, ...]
    #: How our way differs, and the reason.
    ours: str = ""
    #: With which setting it is as designed, if it is not so by default.
    note: str = ""


def read() -> dict[int, Claim]:
    """Return all claims by number."""
    data = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    return {int(number): row for number, row in msgspec.convert(data, dict[str, Claim]).items()}


def page() -> str:
    """Return the page as text."""
    claims = read()
    totals = Counter(row.verdict for row in claims.values())
    counts = ", ".join(f"{totals[verdict]} are {verdict.shown}" for verdict in Verdict)
    parts = [_HEAD.format(counts=f"Of {len(claims)} claims, {counts}")]
    for number, row in claims.items():
        if number in _CHAPTERS:
            parts.append(f"\n## {_CHAPTERS[number]}\n")
            parts.append("| | Claim | Here | Test |\n|---|---|---|---|")
        ours = f"**{row.verdict.shown}**" + (f" {row.note}" if row.note else "")
        ours += f": {row.ours}" if row.ours else ""
        tests = ", ".join(f"`{test.replace('::', ' ')}`" for test in row.tests)
        parts.append(f"| {number} | {row.says} | {ours} | {tests} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
