"""Fields and rows of our own requests for the log as it was written."""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.own_forms import Row
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader


class ReadLogHeader(OwnHeader, frozen=True, kw_only=True):
    """READ_LOG."""

    #: Log offsets: from, and up to.  As much is answered as is good for the broker's other clients.
    start: Int64
    end: Int64


class ReadLogAnswer(OwnAnswer, frozen=True, kw_only=True):
    """READ_LOG."""

    #: What of the log could be read: from, and up to.
    log_start: Int64
    log_end: Int64
    #: What the checksums of this log's frames begin with.
    seed: Int64


class LogBlockRow(Row, frozen=True):
    """A stretch of the log."""

    log_offset: Int64
    #: Bytes of it.
    size: Int32


class NameRow(Row, frozen=True):
    """What a number stands for."""

    #: `queue`, or `origin`: where half messages come from.
    kind: str
    number: Int32
    #: The topic, or the producer group.
    name: str
    #: Of a queue.
    queue_id: Int32 | None
    #: Of an origin.
    ledger: str | None
