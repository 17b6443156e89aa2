"""What a ledger says about a transaction, shared by the SDK, the pipeline and the broker."""

from __future__ import annotations

from enum import StrEnum


class LedgerOutcome(StrEnum):
    """Outcome of a transaction in the user's database. A ledger row holds one of the first two."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


MAYBE_SWEPT = "maybe_swept"
"""Reason for UNKNOWN: the row may have been swept in another history, so its absence proves
nothing."""
