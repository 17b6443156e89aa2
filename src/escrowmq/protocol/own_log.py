"""Fields and rows of our own requests for the raw log."""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.own_forms import Row
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader


class ReadLogHeader(OwnHeader, frozen=True, kw_only=True):
    """READ_LOG."""

    #: Range of log offsets: start, and exclusive end. The broker returns as much as it can without
    #: slowing down its other clients.
    start: Int64
    end: Int64


class ReadLogAnswer(OwnAnswer, frozen=True, kw_only=True):
    """READ_LOG."""

    #: Readable range of the log: start, and exclusive end.
    log_start: Int64
    log_end: Int64
    #: Initial value of the checksums of this log's frames.
    seed: Int64


class LogBlockRow(Row, frozen=True):
    """A stretch of the log."""

    log_offset: Int64
    #: Size in bytes.
    size: Int32


class NameRow(Row, frozen=True):
    """The name that a number in the log stands for."""

    #: `queue`, or `origin`: the producer group and ledger of half messages.
    kind: str
    number: Int32
    #: The topic, or the producer group.
    name: str
    #: Null for an origin.
    queue_id: Int32 | None
    #: Null for a queue.
    ledger: str | None
