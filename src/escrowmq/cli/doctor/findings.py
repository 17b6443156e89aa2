"""The findings of ``escrowmq doctor``, one line each."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    #: Nothing is wrong, but an optional part is absent or an action may help.
    INFORMATION = "information"
    #: The checked part works now, but may fail later or after an accident.
    WARNING = "warning"
    PROBLEM = "problem"


class DoctorFinding(NamedTuple):
    """One check with its result and what to do."""

    level: Severity
    check: str
    found: str
    #: What to do; empty if there is nothing to do.
    advice: str = ""


ok = partial(DoctorFinding, Severity.OK)
information = partial(DoctorFinding, Severity.INFORMATION)
warning = partial(DoctorFinding, Severity.WARNING)
problem = partial(DoctorFinding, Severity.PROBLEM)


def judged(
    check: str, found: str, *cases: tuple[object, Callable[..., DoctorFinding], str]
) -> DoctorFinding:
    """Return the finding of the first case whose condition holds, or ``ok`` if none does.

    A case is its condition, the kind of finding, and the advice.
    """
    for holds, kind, advice in cases:
        if holds:
            return kind(check, found, advice)
    return ok(check, found)
