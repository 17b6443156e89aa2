"""REPORT_LEDGERS and LIST_LEDGERS: which ledgers a pipeline can reach, and why not the others.

Later releases may append columns to these rows. A reader ignores unknown columns and uses the
default of missing ones, so broker, pipeline and tools of different releases work together. Reports
contain ages instead of times, because the clocks of two machines differ.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int32, Int64

REPORTED_MAX = 256
"""Most ledgers in one report."""

LISTED_MAX = 2_048
"""Most ledgers in one list."""


class ReportLedgersHeader(NativeHeader, frozen=True, kw_only=True):
    """REPORT_LEDGERS."""

    #: The pipeline that reports. Its next report replaces this one.
    pipeline: Name
    #: How long the report is valid, at most 600000; 0 withdraws it.
    valid_for_ms: Int32 = 120_000
    #: How long ago the last settle round that read this broker ended; absent if there was none.
    round_ended_ago_ms: Int64 | None = None


class LedgerReportRow(NativeRow, frozen=True, forbid_unknown_fields=False):
    """A pipeline's report about one configured ledger."""

    #: NAME of the section `[ledger.NAME]`.
    name: Name
    #: The UUID that its database last returned; empty if it never returned one.
    uuid: Name = ""
    #: Whether the pipeline can look up transactions there now.
    is_reachable: bool = False
    #: Code of the last error.
    error: Name = ""
    #: Text of the last error, cut at 1024 characters.
    error_text: str = ""
    #: How long ago the pipeline last reached it; null for never.
    succeeded_ago_ms: Int64 | None = None
    #: How long ago the pipeline last failed to reach it; null for never.
    failed_ago_ms: Int64 | None = None
    #: The UUID that this database returned before the current one; empty if it never changed.
    uuid_before: Name = ""


class ListLedgersAnswer(NativeAnswer, frozen=True, kw_only=True):
    """LIST_LEDGERS."""

    #: Pipelines whose reports are valid now.
    pipelines: Int32 = 0
    #: Ledgers that did not fit into the answer.
    left_out: Int32 = 0


class LedgerRow(NativeRow, frozen=True, forbid_unknown_fields=False):
    """A ledger that a pipeline reported, or that an undecided transaction names."""

    #: The UUID that its database returned; empty if it never returned one.
    uuid: str
    #: NAME of the section `[ledger.NAME]`; empty if no pipeline has it in its config.
    name: str = ""
    #: The pipeline that reported it; empty if none did.
    pipeline: str = ""
    #: Whether the pipeline can look up transactions there.
    is_reachable: bool = False
    #: Code of the last error; empty if there was none.
    error: str = ""
    error_text: str = ""
    reported_at_ms: Int64 | None = None
    #: When the pipeline last reached it; null for never.
    succeeded_at_ms: Int64 | None = None
    #: When the pipeline last failed to reach it; null for never.
    failed_at_ms: Int64 | None = None
    #: The UUID that this database returned before the current one; empty if it never changed.
    uuid_before: str = ""
    #: Undecided transactions that name this UUID.
    undecided: Int64 = 0
