"""Fields of Spark sinks' requests: look up attempts and batches, and decide a batch.

``headers.py`` has the fields of the other requests.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.remoting.headers import Int64


class NamedBatchHeader(NativeHeader, frozen=True, kw_only=True):
    """Fields of a request that may name a batch."""

    #: The number of a streaming query's batch; a plain write has a name instead.
    batch_number: Int64 | None = None
    batch_name: Name | None = None
    #: The writer's checksum of all rows of a named batch. If another query already wrote the batch,
    #: DECIDE_BATCH answers `already_done` for the same content and refuses other content.
    content: Name = ""


class FindAttemptsHeader(NamedBatchHeader, frozen=True, kw_only=True):
    """FIND_ATTEMPTS."""

    #: The producer group of all these attempts.
    producer_group: Name
    #: The query of a batch of the group's app id to look up, if any.
    query_id: Name = ""


class FindAttemptsAnswer(NativeAnswer, frozen=True, kw_only=True):
    """FIND_ATTEMPTS."""

    #: Whether this group ever held a message here, or a batch of its app id was decided here.
    is_known: bool
    #: If the request names no attempt: comma-separated names of the other brokers that decide, or
    #: ever decided, the messages that this app id holds here.
    homes: str
    #: The end of the log. A sink run that starts later starts at a higher log offset.
    log_end: Int64 = 0
    #: State of the batch: `new`, `done` by the same query or with the same content, `taken` by
    #: another query, or `expired` if the broker forgot its query, which may have decided it. Empty
    #: if the request names no batch.
    judged: str = ""


class DecideBatchHeader(NamedBatchHeader, frozen=True, kw_only=True):
    """DECIDE_BATCH."""

    app_id: Name
    query_id: Name
    by: Name
    #: Whether the query decides every number, including empty batches. If so, a gap is refused.
    is_gapless: bool = False


class DecideBatchAnswer(NativeAnswer, frozen=True, kw_only=True):
    """DECIDE_BATCH."""

    #: `decided`, or `already_done` if the batch was decided before. In that case the broker rolled
    #: back these attempts.
    outcome: str
    #: Messages that became visible.
    messages: Int64
