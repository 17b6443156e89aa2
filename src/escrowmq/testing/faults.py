"""Failures that a test has planned for a disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from escrowmq.testing.survivors import Survivors


@dataclass(slots=True, kw_only=True)
class Fault:
    """Some calls that succeed, then some that fail."""

    #: The kind of call, and what its path starts with.
    kind: str
    under: str
    successes_left: int
    #: None means all that follow.
    failures_left: int | None
    errno: int
    short_bytes: int
    survivors: Survivors


def planned(faults: Iterable[Fault], kind: str, path: str) -> Fault | None:
    """The fault that this call runs into, if any; it counts as called."""
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
