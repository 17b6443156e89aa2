"""How the broker ended what the pipeline told it to do about one transaction."""

from __future__ import annotations

from enum import StrEnum


class VerdictOutcome(StrEnum):
    """The values go over the wire: never rename one, only add."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    PARKED = "parked"
    #: A producer's socket took the back-check, and it is counted.
    ASKED = "asked"
    #: No producer of the group is online: nothing was sent, nothing is counted.
    NO_PRODUCER = "no_producer"
    #: A limit is reached, or the transaction is being asked about: not now.
    BUSY = "busy"
    #: The transaction has moved on since the verdict was computed.
    STALE = "stale"
    #: It can never be done.
    REFUSED = "refused"
    #: The store failed while it was being done: only a restart will tell.
    UNKNOWN = "unknown"
