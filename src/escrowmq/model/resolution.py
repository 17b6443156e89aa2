"""Answers about a transaction, shared by the SDK, the core and the broker."""

from __future__ import annotations

from enum import StrEnum


class Resolution(StrEnum):
    """Outcome of a local transaction, as its producer, its ledger or a person reports it."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: The outcome is not known yet: the broker asks again later. An answer that the broker cannot
    #: interpret means this too, so no transition starts from it.
    UNKNOWN = "unknown"
