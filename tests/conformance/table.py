"""The table that compares RocketMQ's behavior with ours, as data and as a page.

``python -m tests.conformance.table docs/reference/conformance.md`` writes the page.
"""

from __future__ import annotations

import sys
import tomllib
from enum import StrEnum
from pathlib import Path

import msgspec

BEHAVIOURS = Path(__file__).with_name("behaviours.toml")
PAGE = "docs/reference/conformance.md"

#: The release of Apache RocketMQ that the page compares with.
ROCKETMQ_VERSION = "5.5"

_HEAD = f"""\
# Conformance with RocketMQ

Written by `make docs` from `tests/conformance/behaviours.toml`; edit that instead.

What a broker of Apache RocketMQ {ROCKETMQ_VERSION} does, and what ours does:

- **same**: as RocketMQ, because clients rely on it
- **better**: where RocketMQ's way loses, doubles or hides something
- **not there**: RocketMQ has it, and EscrowMQ does not
- **does not apply**: it cannot exist here by design; the third column gives the reason

The tests in the last column prove the row; their names are under `tests/`. The numbers are those of
our list of facts about RocketMQ. In chapters 8 (what RocketMQ's own tests assert) and 10 (its
pitfalls) every number is here; 8.x are cases that those tests leave out.
"""
_TITLES = {
    "1": "The flow of a transaction",
    "2": "Back-checks",
    "3": "Producers",
    "4": "The remoting protocol",
    "6": "Retries and limits",
    "8": "What RocketMQ's own tests assert",
    "10": "RocketMQ's pitfalls",
}


class Verdict(StrEnum):
    """How our behavior compares with RocketMQ's."""

    SAME = "same"
    BETTER = "better"
    NOT_THERE = "not_there"
    DOES_NOT_APPLY = "does_not_apply"


#: RocketMQ's behavior, and a test that asserts it or asserts what EscrowMQ does instead.
PROVEN = (Verdict.SAME, Verdict.BETTER)
_SHOWN = {Verdict.NOT_THERE: "not there", Verdict.DOES_NOT_APPLY: "does not apply"}


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One behavior of RocketMQ."""

    does: str
    verdict: Verdict
    #: Each test's path under ``tests/``, with ``::`` before the test's name.
    tests: tuple[str, ...] = ()
    #: Our behavior where it differs, or why there is nothing to do.
    ours: str = ""


def read() -> dict[str, Behaviour]:
    """Return all behaviors by id."""
    data = tomllib.loads(BEHAVIOURS.read_text(encoding="utf-8"))
    return msgspec.convert(data, dict[str, Behaviour])


def page() -> str:
    """Return the page as text."""
    parts = [_HEAD]
    section = ""
    for number, row in read().items():
        if number.partition(".")[0] != section:
            section = number.partition(".")[0]
            parts.append(f"\n## {_TITLES[section]}\n")
            parts.append("| | RocketMQ | Ours | Tests |\n|---|---|---|---|")
        shown = _SHOWN.get(row.verdict, row.verdict.value)
        ours = f"**{shown}**: {row.ours}" if row.ours else f"**{shown}**"
        tests = "<br>".join(f"`{test.replace('::', ' ')}`" for test in row.tests)
        parts.append(f"| {number} | {row.does} | {ours} | {tests} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
