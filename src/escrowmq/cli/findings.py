"""The findings of ``escrowmq doctor``, one line each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    #: Nothing is wrong, but an optional part is absent or an action may help.
    INFORMATION = "information"
    #: It works now, but may fail later or after an accident.
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """One check with its result and what to do."""

    level: Level
    check: str
    found: str
    #: Empty if there is nothing to do.
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(Level.OK, check, found)


def information(check: str, found: str, advice: str = "") -> Finding:
    """Make a finding that is good to know."""
    return Finding(Level.INFORMATION, check, found, advice)


def warning(check: str, found: str, advice: str) -> Finding:
    """Make a finding that an operator should act on."""
    return Finding(Level.WARNING, check, found, advice)


def problem(check: str, found: str, advice: str) -> Finding:
    """Make a finding that an operator must act on."""
    return Finding(Level.PROBLEM, check, found, advice)
