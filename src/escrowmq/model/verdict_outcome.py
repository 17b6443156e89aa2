"""Outcomes of verdicts, whether a pipeline's or the broker's own."""

from __future__ import annotations

from enum import StrEnum


class VerdictOutcome(StrEnum):
    """How the broker ended a verdict. The values go over the wire: never rename one, only add."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    PARKED = "parked"
    #: A producer's socket took the back-check. It is counted, unless the answer came first.
    ASKED = "asked"
    #: No producer of the group is online: the broker sent and counted nothing.
    NO_PRODUCER = "no_producer"
    #: A limit is reached, or a back-check of the transaction is in progress. Retry later.
    BUSY = "busy"
    #: The transaction has changed since the verdict was computed.
    STALE = "stale"
    #: The broker cannot carry out the verdict.
    REFUSED = "refused"
    #: The store failed during the verdict: the outcome is unknown until a restart.
    UNKNOWN = "unknown"
