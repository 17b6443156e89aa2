"""Result of a store inspection: for people, for JSON and for repair."""

from __future__ import annotations

from enum import StrEnum

import msgspec

FINDINGS_MAX = 1_000
"""Findings that are listed one by one; the others are only counted."""


class RangeKind(StrEnum):
    """Kinds of log ranges without intact frames."""

    #: Never acknowledged: the next start cuts it off.
    TORN = "torn"
    #: Was acknowledged, and is no longer readable.
    DAMAGED = "damaged"
    #: Was acknowledged, and is not there: a segment is gone or too short.
    MISSING = "missing"
    #: Written by a newer release.
    VERSION_UNKNOWN = "version_unknown"


class BadRange(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes ``[log_offset, log_offset + length)`` of the log that hold no intact frame."""

    segment: str
    log_offset: int
    length: int
    kind: RangeKind
    #: Store time of the intact frame before it, or else of the one after it.
    stored_at_ms: int = 0
    #: What the bytes seem to say, unverified.
    says: list[str] = []

    @property
    def end(self) -> int:
        """The log offset after its last byte."""
        return self.log_offset + self.length


class NumberGap(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers ``[expected, found)`` that no intact frame assigned: the frames that did are gone."""

    #: "half", "queue" (offsets in ``queue``), "queue_name" or "origin".
    what: str
    queue: int = -1
    expected: int
    found: int
    #: The frames that assigned them were between these log offsets.
    after: int
    before: int


class StoreFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at one place of one file."""

    code: str
    path: str
    what: str
    #: Bytes from the start of the file; in the log, the log offset.
    at: int = 0


class CheckpointFound(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint file."""

    path: str
    is_whole: bool
    at_ms: int = 0
    log_start: int = 0
    log_end: int = 0


class SegmentFound(msgspec.Struct, kw_only=True):
    """A segment of the log."""

    path: str
    start: int
    bytes: int
    frames: int = 0
    first_at_ms: int = 0
    last_at_ms: int = 0


class NumberSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers ``[first, first + count)``."""

    first: int
    count: int


class QueueSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Queue offsets ``[first, first + count)`` of one queue."""

    topic: str
    queue_id: int
    first: int
    count: int


class Hits(msgspec.Struct, kw_only=True):
    """The loss in the bad ranges of the log, as far as intact bytes tell."""

    #: Half offsets whose message is in a bad range.
    halves: list[NumberSpan] = []
    #: Half offsets whose decision is in a bad range; the state table still knows it.
    decisions: list[NumberSpan] = []
    #: Visible messages that are in a bad range.
    messages: list[QueueSpan] = []


class LogCounts(msgspec.Struct, kw_only=True):
    """Counts over the intact frames of the log."""

    frames: int = 0
    #: Queues that were ever given a number.
    queues: int = 0
    #: Topics and consumer groups that exist at the log's end.
    topics: int = 0
    groups: int = 0
    #: Half messages, ordinary messages, and delayed ordinary messages (released or not).
    halves: int = 0
    stored: int = 0
    scheduled: int = 0
    #: Delayed ordinary messages that their senders took back.
    recalled: int = 0
    #: Queue offsets that were assigned.
    visible: int = 0
    #: Transactions by state.
    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    parked: int = 0


class StoreReport(msgspec.Struct, kw_only=True):
    """All that an inspection found."""

    version: int
    log_start: int = 0
    log_end: int = 0
    checkpoints: list[CheckpointFound] = []
    segments: list[SegmentFound] = []
    ranges: list[BadRange] = []
    #: Ranges that earlier repairs took out.
    lost: list[NumberSpan] = []
    #: Faults besides the ranges.
    findings: list[StoreFault] = []
    findings_left_out: int = 0
    #: Normal after a crash; the next start cleans them up.
    leftovers: list[str] = []
    gaps: list[NumberGap] = []
    hits: Hits = msgspec.field(default_factory=Hits)
    counts: LogCounts = msgspec.field(default_factory=LogCounts)

    @property
    def damage(self) -> list[BadRange]:
        """The bad ranges that a crash does not explain."""
        return [found for found in self.ranges if found.kind is not RangeKind.TORN]

    @property
    def is_damaged(self) -> bool:
        """Whether the inspection found any fault."""
        return bool(self.damage or self.findings)

    def note(self, code: str, path: str, what: str, at: int = 0) -> None:
        """Add a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(StoreFault(code=code, path=path, what=what, at=at))
        else:
            self.findings_left_out += 1
