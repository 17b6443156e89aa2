"""Fields and rows of native requests for the raw log."""

from __future__ import annotations

from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int32, Int64


class ReadLogHeader(NativeHeader, frozen=True, kw_only=True):
    """READ_LOG."""

    #: Range of log offsets: start, and exclusive end. The broker returns as much as it can without
    #: slowing down its other clients.
    start: Int64
    end: Int64


class ReadLogAnswer(NativeAnswer, frozen=True, kw_only=True):
    """READ_LOG."""

    #: Readable range of the log: start, and exclusive end.
    log_start: Int64
    log_end: Int64
    #: Initial value of the checksums of this log's frames.
    seed: Int64


class LogBlockRow(NativeRow, frozen=True):
    """A stretch of the log."""

    log_offset: Int64
    #: Size in bytes.
    size: Int32


class NameRow(NativeRow, frozen=True):
    """The name that a number in the log stands for."""

    #: `queue` or `origin`. An origin is the producer group and the ledger of half messages.
    kind: str
    number: Int32
    #: The topic, or the producer group.
    name: str
    #: Null for an origin.
    queue_id: Int32 | None
    #: Null for a queue.
    ledger: str | None
