"""Native requests about the comparison of the log's records with the state store.

Reports contain ages instead of times, because the clocks of two machines differ.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import ListHeader, NativeHeader, PagedAnswer
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int64

DIFFERENCES_MAX = 100
"""Most differences in one report. The report's count has the others, too."""


class ReportComparisonHeader(NativeHeader, frozen=True, kw_only=True):
    """REPORT_COMPARISON."""

    #: The pipeline that reports.
    pipeline: Name
    #: `caught_up`, `behind` (the round's limit was reached), or `open_limit` (so many transactions
    #: are undecided that some were left out).
    outcome: Name
    #: Why the comparison began anew at the start of the log; empty if it continued: `first_round`,
    #: `checkpoint_damaged`, `other_store`, `history_forked`, `records_deleted` or `open_again`.
    begun: Name = ""
    #: Every half message below this half offset is decided.
    decided_before: Int64
    #: Half messages below this half offset were compared.
    half_end: Int64
    #: Records below this log offset were compared.
    log_offset: Int64
    #: Undecided requests that the checkpoint holds, and those that it had no room for.
    open_requests: Int64 = 0
    left_out: Int64 = 0
    #: Differences between the records and the state store that still hold.
    differences: Int64 = 0
    #: `compared`; `is_table` if the state table is the state store; or why `mapped` or `sql` was
    #: not compared: the error's code, or `behind` as the outcome.
    state_store: Name = ""
    took_ms: Int64 = 0
    #: How long ago the round ended.
    ended_ago_ms: Int64 = 0


class ListComparisonHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_COMPARISON."""


class ListStateStoreHeader(ListHeader, frozen=True, kw_only=True):
    """LIST_STATE_STORE."""

    #: Range of half offsets: start, and exclusive end, where -1 means all.
    start: Int64 = 0
    end: Int64 = -1


class ListStateStoreAnswer(PagedAnswer, frozen=True, kw_only=True):
    """A page of the state store."""

    #: The page has every change below this log offset, and may have later ones.
    log_offset: Int64


class StateStoreRow(NativeRow, frozen=True):
    """An undecided half message that the state store holds."""

    half_offset: Int64
    #: Whether it stands for its transaction. `sql` holds only such rows.
    is_head: bool


class DifferenceRow(NativeRow, frozen=True):
    """A difference between the records and the state store."""

    #: A finding of the audit.
    finding: Name
    half_offset: Int64
    message_count: Int64
    #: The state by the records, and by the state store; empty for none.
    recorded: Name = ""
    listed: Name = ""
    #: How long ago it was found.
    found_ago_ms: Int64 = 0


class ReportedComparison(NativeRow, frozen=True):
    """The last comparison, as its pipeline reported it."""

    pipeline: str
    compared_at_ms: Int64
    outcome: str
    begun: str
    decided_before: Int64
    half_end: Int64
    log_offset: Int64
    open_requests: Int64
    left_out: Int64
    differences: Int64
    state_store: str
    took_ms: Int64


class ComparisonRow(ReportedComparison, frozen=True):
    """The last comparison, once for each of its differences, or once if there is none."""

    #: A difference; null in all these columns if there is none.
    finding: str | None = None
    half_offset: Int64 | None = None
    message_count: Int64 | None = None
    recorded: str | None = None
    listed: str | None = None
    found_at_ms: Int64 | None = None
