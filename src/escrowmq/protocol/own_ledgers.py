"""REPORT_LEDGERS and LIST_LEDGERS: which ledgers a pipeline reaches, and why not the others.

Later releases may append columns to these rows.  A reader ignores columns that it does not know,
and takes the default of those that are missing, so that broker, pipeline and tools of different
releases understand each other.  Times are ages, because the clocks of two machines differ.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name
from escrowmq.protocol.own_forms import Row
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader

REPORTED_MAX = 256
"""Ledgers of one report."""

LISTED_MAX = 2_048
"""Ledgers of one list."""


class ReportLedgersHeader(OwnHeader, frozen=True, kw_only=True):
    """REPORT_LEDGERS."""

    #: Which pipeline reports: its next report takes the place of this one.
    pipeline: Name
    #: How long the report counts, at most 600000; 0 withdraws it.
    valid_for_ms: Int32 = 120_000
    #: How long ago the last settle round ended that read this broker; absent if there was none.
    round_ended_ago_ms: Int64 | None = None


class LedgerReportRow(Row, frozen=True, forbid_unknown_fields=False):
    """What a pipeline found out about one configured ledger."""

    #: NAME of the section `[ledger.NAME]`.
    name: Name
    #: The UUID that its database told, now or before; empty if it never did.
    uuid: Name = ""
    #: Whether transactions can be looked up there now.
    is_reachable: bool = False
    #: The last error, as a code and in words, which are cut at 1024 characters.
    error: Name = ""
    error_text: str = ""
    #: How long ago the pipeline last reached it, and last failed to; null for never.
    succeeded_ago_ms: Int64 | None = None
    failed_ago_ms: Int64 | None = None
    #: The UUID that this database told before it told another one; empty if it always told one.
    uuid_before: Name = ""


class ListLedgersAnswer(OwnAnswer, frozen=True, kw_only=True):
    """LIST_LEDGERS."""

    #: Pipelines whose reports count now.
    pipelines: Int32 = 0
    #: Ledgers that did not fit into the answer.
    left_out: Int32 = 0


class LedgerRow(Row, frozen=True, forbid_unknown_fields=False):
    """A ledger that a pipeline reported, or that an undecided transaction names."""

    #: Empty if its database never told it.
    uuid: str
    #: NAME of the section `[ledger.NAME]`; empty if no pipeline has it in its config.
    name: str = ""
    #: Which pipeline reported it; empty if none did.
    pipeline: str = ""
    is_reachable: bool = False
    error: str = ""
    error_text: str = ""
    reported_at_ms: Int64 | None = None
    #: When the pipeline last reached it, and last failed to; null for never.
    succeeded_at_ms: Int64 | None = None
    failed_at_ms: Int64 | None = None
    uuid_before: str = ""
    #: Undecided transactions that name this UUID.
    undecided: Int64 = 0
