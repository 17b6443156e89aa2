"""FIND_MESSAGES and PREVIEW_HALVES: find messages, and preview the messages of transactions."""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name, Searched
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.remoting.headers import Int32, Int64

TRANSACTIONS_MAX = 1_000
"""Most transactions in one request."""

PREVIEWS_MAX = 4_096
"""Most messages in one answer."""

BODY_BYTES_MAX = 4_096
"""Most bytes of one body in an answer."""


class FindMessagesHeader(NativeHeader, frozen=True, kw_only=True):
    """FIND_MESSAGES: by topic and key, or by message id."""

    topic: Name = ""
    #: One of its keys, or its unique key.
    key: Searched = ""
    #: Any id of a message: its unique key, its offset message id, its transaction's id, or its half
    #: offset. If it is given, the broker ignores topic and key. Release 0.1.0 accepts only the
    #: offset message id.
    message_id: Name = ""
    limit: Int32 = 0
    #: A search by key also finds half messages that are not visible, unless they were rolled back.
    with_undecided: bool = False


class FindMessagesAnswer(NativeAnswer, frozen=True, kw_only=True):
    """FIND_MESSAGES: the fields describe the first row of a search by id."""

    #: The kind of id: `unique_key`, `transaction_id`, `message_id` or `half_offset`.
    found_by: str = ""
    #: `visible`, `prepared`, `parked`, `rolled_back`, `waiting` until it is due, or `recalled`.
    state: str = ""
    #: When a waiting message becomes visible.
    due_at_ms: Int64 | None = None
    #: Its half offset; absent for a message without a transaction.
    half_offset: Int64 | None = None


class PreviewHalvesHeader(NativeHeader, frozen=True, kw_only=True):
    """PREVIEW_HALVES."""

    #: Most messages to describe per transaction.
    messages_max: Int32 = 1
    #: Most bytes to return of each body, up to 4096.
    body_bytes: Int32 = 256


class PreviewHalvesAnswer(NativeAnswer, frozen=True, kw_only=True):
    """PREVIEW_HALVES."""

    #: Number of the request's rows, from the first one, that this answer covers. Request the rest
    #: again.
    covered: Int32


class SoughtHalfRow(NativeRow, frozen=True):
    """A transaction to describe."""

    #: Offset of its first half message.
    half_offset: Int64


class PreviewRow(NativeRow, frozen=True):
    """One message of a transaction."""

    #: The half offset from the request.
    half_offset: Int64
    #: The message's position in its transaction, starting at 0.
    place: Int32
    #: Messages in the transaction.
    message_count: Int64
    topic: str
    queue_id: Int32
    #: The offset message id.
    message_id: str
    unique_key: str
    #: Separated by spaces.
    keys: str
    tags: str
    #: The first bytes of the body.
    body: bytes
    #: Size of the whole body.
    body_bytes: Int64
    #: RocketMQ's bits. The lowest bit is set if the body is compressed.
    sys_flag: Int32
