"""Disk failures that a test has planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from escrowmq.testing.survivors import Survivors


@dataclass(slots=True, kw_only=True)
class Fault:
    """A plan: a number of calls succeed, and then a number of calls fail."""

    #: The kind of call, and the prefix of its path.
    kind: str
    under: str
    successes_left: int
    #: None means that all later calls fail.
    failures_left: int | None
    errno: int
    short_bytes: int
    survivors: Survivors


def planned(faults: Iterable[Fault], kind: str, path: str) -> Fault | None:
    """Count this call, and return the fault that it hits, or None."""
    for fault in faults:
        if fault.kind != kind or not path.startswith(fault.under):
            continue
        if fault.successes_left:
            fault.successes_left -= 1
        elif fault.failures_left is None:
            return fault
        elif fault.failures_left:
            fault.failures_left -= 1
            return fault
    return None
