"""The fields of requests of Spark sinks: what became of attempts and batches, and deciding one.

As ``own_headers.py``, which has all the others.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Int64
from escrowmq.protocol.limits import Name
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader


class FindAttemptsHeader(OwnHeader, frozen=True, kw_only=True):
    """FIND_ATTEMPTS."""

    #: Of all of them.
    producer_group: Name
    #: A batch of the group's app id that is asked about, if any: it has a number or a name.
    query_id: Name = ""
    batch_number: Int64 | None = None
    batch_name: Name | None = None
    #: What the writer says of the rows of a batch with a name.
    content: Name = ""


class FindAttemptsAnswer(OwnAnswer, frozen=True, kw_only=True):
    """FIND_ATTEMPTS."""

    #: Whether this group ever held anything here, or a batch of its app id was decided here.
    is_known: bool
    #: If no attempt was asked for: names of the other brokers that decide, or ever decided, what
    #: this app id holds here, with commas between them.
    homes: str
    #: Where the log ends: a run of a sink that begins later begins at a higher position.
    log_end: Int64 = 0
    #: How it stands with the batch: `new`, `done` by the same query or with the same content,
    #: `taken` by another one, or `expired` if its query was forgotten and may have decided it;
    #: empty if none was asked about.
    judged: str = ""


class DecideBatchHeader(OwnHeader, frozen=True, kw_only=True):
    """DECIDE_BATCH."""

    app_id: Name
    query_id: Name
    #: Of a streaming query; a plain write has a name instead.
    batch_number: Int64 | None = None
    batch_name: Name | None = None
    by: Name
    #: What the writer says of all rows of a batch with a name: another query that writes the same
    #: is answered `already_done`, and refused if it differs.
    content: Name = ""
    #: Whether the query decides every number, also of empty batches: then a gap is refused.
    is_gapless: bool = False


class DecideBatchAnswer(OwnAnswer, frozen=True, kw_only=True):
    """DECIDE_BATCH."""

    #: `decided`, or `already_done` by the same query: then these attempts were rolled back.
    outcome: str
    #: Messages that became visible.
    messages: Int64
