"""The evidence of one range of half offsets, as arrays, and the result of folding it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.transaction.states import State

Rows = npt.NDArray[Any]

#: A request's half messages within the range. ``total`` is the request's own count, or 0 if the
#: request begins in an earlier range.
HALF = np.dtype(
    [("first", "<i8"), ("head", "<i8"), ("count", "<i8"), ("total", "<i4"), ("copy", "u1")]
)
#: A request of a transaction whose head is in the range.
PART = np.dtype([("first", "<i8"), ("head", "<i8"), ("count", "<i8")])
#: Half messages that a decision decided.
RUN = np.dtype([("first", "<i8"), ("count", "<i8"), ("state", "u1")])
#: A row of the state table.
ROW = np.dtype([("first", "<i8"), ("count", "<i8"), ("state", "u1")])
#: A message that consumers see.
SHOWN = np.dtype([("first", "<i8")])

UNDECIDED = int(State.PREPARED)
COMMITTED = int(State.COMMITTED)
ROLLED_BACK = int(State.ROLLED_BACK)
PARKED = int(State.PARKED)
#: No state: the records say nothing, or contradict each other.
NONE = -1


@dataclass(frozen=True, kw_only=True)
class RangeEvidence:
    """The evidence about the half offsets from ``base`` on, by source."""

    base: int
    width: int
    #: Where the log's half messages begin. Below it, only carried-forward or copied ones may be
    #: left.
    known_from: int
    halves: Rows = field(default_factory=lambda: np.empty(0, HALF))
    parts: Rows = field(default_factory=lambda: np.empty(0, PART))
    runs: Rows = field(default_factory=lambda: np.empty(0, RUN))
    #: Decisions of older half messages are not compared. None means ``known_from``.
    ops_known_from: int | None = None
    #: None if the state table, or the visible messages, are not compared.
    rows: Rows | None = None
    shown: Rows | None = None


@dataclass(frozen=True)
class ArrayFindings:
    """Findings of one name: where, and what each side says."""

    finding: FindingName
    half_offset: Rows
    head: Rows
    message_count: Rows
    #: The state from the records, and what the other side has: a state or a count.
    recorded: Rows
    other: Rows


@dataclass(frozen=True)
class Folded:
    """The result of one range."""

    found: list[ArrayFindings]
    #: Undecided requests (``HALF``).
    open: Rows
    #: Requests of transactions with several requests, each with its state. The states must agree.
    parts: Rows
    counts: dict[str, int]


#: A request of a transaction with several requests, and its state.
PART_STATE = np.dtype([("first", "<i8"), ("head", "<i8"), ("count", "<i8"), ("state", "i1")])
