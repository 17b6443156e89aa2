"""What ``escrowmq doctor`` finds: one line each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    #: Nothing is wrong; something could be more.
    INFORMATION = "information"
    #: It works, and will not for ever or not after every accident.
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """One check, how it came out, and what to do."""

    level: Level
    check: str
    found: str
    #: Empty if there is nothing to do.
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, check, found)


def information(check: str, found: str, advice: str = "") -> Finding:
    """Good to know."""
    return Finding(Level.INFORMATION, check, found, advice)


def warning(check: str, found: str, advice: str) -> Finding:
    """Somebody should see to it."""
    return Finding(Level.WARNING, check, found, advice)


def problem(check: str, found: str, advice: str) -> Finding:
    """Somebody must see to it."""
    return Finding(Level.PROBLEM, check, found, advice)
