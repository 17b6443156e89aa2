"""Folds one range of half offsets: what the records say about each, and which evidence disagrees.

Half offsets are dense, so a range of them is an array. How often an offset was stored, committed,
rolled back and shown is one count each, and a request's outcome is a sum over its offsets. There is
no join and no object per transaction. ``joins.py`` states the same rules as plain joins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escrowmq.pipeline.audit.arrays import (
    COMMITTED,
    NONE,
    PARKED,
    PART_STATE,
    ROLLED_BACK,
    UNDECIDED,
    ArrayFindings,
    Folded,
    RangeEvidence,
    Rows,
)
from escrowmq.pipeline.audit.findings import FindingName


def fold(evidence: RangeEvidence) -> Folded:
    """Fold the records of a range, and compare."""
    tally = _Tally(evidence)
    found = [*tally.records()]
    if evidence.rows is not None:
        found += tally.table(evidence.rows)
    if evidence.shown is not None:
        found += tally.visible(evidence.shown)
    return Folded(
        [one for one in found if len(one.half_offset)],
        tally.open(evidence.rows),
        tally.parts(),
        tally.counts(),
    )


class _Tally:
    """Counts by half offset, and their sums by request."""

    def __init__(self, evidence: RangeEvidence) -> None:
        self.evidence = evidence
        self.base = evidence.base
        runs, halves = evidence.runs, evidence.halves
        originals, copies = halves[halves["copy"] == 0], halves[halves["copy"] == 1]
        self.stored = self._cover(originals)
        self.commits = self._cover(runs[runs["state"] == COMMITTED])
        self.rollbacks = self._cover(runs[runs["state"] == ROLLED_BACK])
        self.known = self.stored + self._cover(copies)
        carried = _outermost(copies[self.stored[copies["first"] - self.base] == 0])
        self.requests = requests = np.concatenate([originals, carried])
        self.at = requests["first"] - self.base
        committed = self._sum(self.commits > 0)
        rolled_back = self._sum(self.rollbacks > 0)
        count = requests["count"]
        self.state = np.full(len(requests), NONE, dtype=np.int64)
        self.state[(committed == 0) & (rolled_back == 0)] = UNDECIDED
        self.state[(committed == count) & (rolled_back == 0)] = COMMITTED
        self.state[(rolled_back == count) & (committed == 0)] = ROLLED_BACK
        self.is_both = (committed > 0) & (rolled_back > 0)
        # If a carried-forward request has no decision, retention may have deleted its op record.
        self.is_open_end = (requests["copy"] == 1) & (self.state == UNDECIDED)
        self.part_count = np.zeros(evidence.width, dtype=np.int64)
        self.has_parts = np.zeros(evidence.width, dtype=bool)
        parts = np.unique(evidence.parts)
        np.add.at(self.part_count, parts["head"] - self.base, parts["count"])
        self.has_parts[parts["head"] - self.base] = True

    def _cover(self, spans: Rows) -> Rows:
        """How many of these spans contain each half offset."""
        at, size = spans["first"] - self.base, self.evidence.width + 1
        starts = np.bincount(at, minlength=size)
        ends = np.bincount(at + spans["count"], minlength=size)
        cover: Rows = np.cumsum(starts - ends)[:-1]
        return cover

    def _sum(self, by_offset: Rows) -> Rows:
        """The sum over the half messages of each request."""
        sums = np.concatenate([[0], np.cumsum(by_offset)])
        total: Rows = sums[self.at + self.requests["count"]] - sums[self.at]
        return total

    def _of_requests(
        self, finding: FindingName, holds: Rows, other: Rows | int = NONE
    ) -> ArrayFindings:
        hits = np.flatnonzero(holds)
        picked = self.requests[hits]
        others = other[hits] if isinstance(other, np.ndarray) else np.full(len(hits), other)
        counts = np.maximum(picked["total"], picked["count"])
        return ArrayFindings(
            finding, picked["first"], picked["head"], counts, self.state[hits], others.astype("i8")
        )

    @staticmethod
    def _of_offsets(finding: FindingName, offsets: Rows, other: Rows) -> ArrayFindings:
        none = np.full(len(offsets), NONE, dtype=np.int64)
        return ArrayFindings(finding, offsets, none, np.ones_like(none), none, other.astype("i8"))

    def records(self) -> Iterator[ArrayFindings]:
        """Findings in half and op records alone."""
        twice = self._sum((self.commits > 1) | (self.rollbacks > 1))
        is_whole = (self.state != NONE) | self.is_both
        yield self._of_requests(FindingName.DECIDED_TWICE, (twice > 0) & ~self.is_both)
        yield self._of_requests(FindingName.DECIDED_BOTH_WAYS, self.is_both)
        yield self._of_requests(FindingName.DECIDED_IN_PART, ~is_whole)
        yield self._of_requests(FindingName.HALF_STORED_TWICE, self._sum(self.stored > 1) > 0)
        runs = self.evidence.runs
        at = runs["first"] - self.base
        evidence = self.evidence
        known_from = evidence.ops_known_from
        if known_from is None:
            known_from = evidence.known_from
        is_alone = (self.known[at] == 0) & (runs["first"] >= known_from)
        yield self._of_offsets(
            FindingName.OP_WITHOUT_HALF, runs["first"][is_alone], runs["state"][is_alone]
        )

    def table(self, rows: Rows) -> Iterator[ArrayFindings]:
        """Findings where the state table disagrees."""
        width = self.evidence.width
        counts = np.zeros(width, dtype=np.int64)
        row_at = rows["first"] - self.base
        counts[row_at] = rows["count"]
        requests, state = self.requests, self.state
        listed = self._listed(rows)
        is_start = (requests["total"] > 0) & (state != NONE)
        is_head = requests["first"] == requests["head"]
        is_decided = is_start & (state > UNDECIDED)
        is_listed_open = (listed == UNDECIDED) | (listed == PARKED)
        is_listed_decided = (listed == COMMITTED) | (listed == ROLLED_BACK)
        # Of an undecided transaction, only the head has a row.
        # A carried-forward record may begin in the middle of its request, which had a row at its
        # beginning.
        is_original = requests["copy"] == 0
        is_missing = is_start & (listed == NONE) & ((is_decided & is_original) | is_head)
        yield self._of_requests(FindingName.HALF_NOT_IN_TABLE, is_missing)
        forgotten = is_decided & is_listed_open
        yield self._of_requests(FindingName.DECISION_FORGOTTEN, forgotten, listed)
        opposite = is_decided & is_listed_decided & (listed != state)
        yield self._of_requests(FindingName.TABLE_CONTRADICTS, opposite, listed)
        # A carried-forward request that waits for its delivery time may have been committed before
        # the log begins.
        may_be_older = self.is_open_end & (listed == COMMITTED)
        unfounded = is_start & (state == UNDECIDED) & is_listed_decided & ~may_be_older
        yield self._of_requests(FindingName.DECISION_WITHOUT_OP, unfounded, listed)
        split = is_start & (state == UNDECIDED) & ~is_head & is_listed_open
        yield self._of_requests(FindingName.TABLE_SPLITS, split, listed)
        expected = requests["total"] + np.where(is_listed_open, self.part_count[self.at], 0)
        agrees = (listed == state) | ((state == UNDECIDED) & is_listed_open & is_head)
        is_countable = is_original | is_listed_open
        differs = is_start & agrees & is_countable & (counts[self.at] != expected)
        yield self._of_requests(FindingName.COUNT_DIFFERS, differs, counts[self.at])
        # Undecided half messages are carried forward, so the log has them however old they are.
        is_open = (rows["state"] == UNDECIDED) | (rows["state"] == PARKED)
        is_within = (rows["first"] >= self.evidence.known_from) | is_open
        is_alone = (self.known[row_at] == 0) & is_within
        yield self._of_offsets(
            FindingName.ROW_WITHOUT_HALF, rows["first"][is_alone], rows["state"][is_alone]
        )

    def _listed(self, rows: Rows) -> Rows:
        """The state table's state of each request; ``NONE`` without a row."""
        states = np.full(self.evidence.width, NONE)
        states[rows["first"] - self.base] = rows["state"]
        listed: Rows = states[self.at]
        return listed

    def open(self, rows: Rows | None) -> Rows:
        """Undecided requests.

        A carried-forward one that the state table has as committed waits for its delivery time.
        """
        is_open = self.state == UNDECIDED
        if rows is not None:
            is_open &= ~(self.is_open_end & (self._listed(rows) == COMMITTED))
        found: Rows = self.requests[is_open]
        return found

    def visible(self, shown: Rows) -> Iterator[ArrayFindings]:
        """Findings where consumers see too little, too much, or something twice."""
        times = np.bincount(shown["first"] - self.base, minlength=self.evidence.width)
        seen = self._sum(times > 0)
        is_hidden = (self.state == COMMITTED) & (seen < self.requests["count"])
        yield self._of_requests(FindingName.COMMITTED_NOT_VISIBLE, is_hidden, seen)
        is_hidden_by_law = (self.state == ROLLED_BACK) | (
            (self.state == UNDECIDED) & ~self.is_open_end
        )
        yield self._of_requests(
            FindingName.VISIBLE_NOT_COMMITTED, is_hidden_by_law & (seen > 0), seen
        )
        yield self._of_requests(
            FindingName.VISIBLE_TWICE, self._sum(times > 1) > 0, self._sum(times)
        )
        offsets = np.flatnonzero((times > 0) & (self.known == 0)) + self.base
        within = offsets[offsets >= self.evidence.known_from]
        yield self._of_offsets(FindingName.VISIBLE_WITHOUT_HALF, within, times[within - self.base])

    def parts(self) -> Rows:
        """Requests whose transaction has other requests, with their states."""
        requests = self.requests
        is_head_of_parts = (requests["first"] == requests["head"]) & self.has_parts[self.at]
        is_part = (requests["first"] != requests["head"]) | is_head_of_parts
        hits = np.flatnonzero(is_part & ~self.is_open_end)
        parts = np.empty(len(hits), dtype=PART_STATE)
        for name in ("first", "head", "count"):
            parts[name] = requests[name][hits]
        parts["state"] = self.state[hits]
        return parts

    def counts(self) -> dict[str, int]:
        """How much was compared."""
        is_transaction = self.requests["first"] == self.requests["head"]
        states = self.state[is_transaction]
        evidence = self.evidence
        return {
            "half_messages": int(self.requests["count"].sum()),
            "requests": int((self.requests["total"] > 0).sum()),
            "transactions": int(is_transaction.sum()),
            "committed": int((states == COMMITTED).sum()),
            "rolled_back": int((states == ROLLED_BACK).sum()),
            "undecided": int((states == UNDECIDED).sum()),
            "carried_forward": int((self.requests["copy"] == 1).sum()),
            "decisions": len(evidence.runs),
            "table_rows": 0 if evidence.rows is None else len(evidence.rows),
            "visible": 0 if evidence.shown is None else len(evidence.shown),
        }


def _outermost(copies: Rows) -> Rows:
    """The longest of the carried-forward records of the same half messages."""
    ordered = np.sort(copies, order=["first", "count"])
    # Of records with the same beginning, the longest comes first.
    ordered = ordered[np.lexsort((-ordered["count"], ordered["first"]))]
    ends = ordered["first"] + ordered["count"]
    reached = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]])
    outermost: Rows = ordered[ordered["first"] >= reached[: len(ordered)]]
    return outermost
