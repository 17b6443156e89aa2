"""FIND_MESSAGES and PREVIEW_HALVES: where a message is, and which messages transactions hold."""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name, Searched
from escrowmq.protocol.own_forms import Row
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader

TRANSACTIONS_MAX = 1_000
"""Transactions that one request may ask about."""

PREVIEWS_MAX = 4_096
"""Messages that one answer describes."""

BODY_BYTES_MAX = 4_096
"""Bytes of one body that an answer holds."""


class FindMessagesHeader(OwnHeader, frozen=True, kw_only=True):
    """FIND_MESSAGES: by topic and key, or by message id."""

    topic: Name = ""
    #: One of its keys, or its unique key.
    key: Searched = ""
    #: Any id of a message: its unique key, its offset message id, its transaction's id, or the
    #: number of a half message; then topic and key are not looked at.  Release 0.1.0 takes
    #: the offset message id only.
    message_id: Name = ""
    limit: Int32 = 0
    #: By key also half messages that are not visible, unless they were rolled back.
    with_undecided: bool = False


class FindMessagesAnswer(OwnAnswer, frozen=True, kw_only=True):
    """FIND_MESSAGES: the fields describe the first row, if the search was by id."""

    #: Which kind of id it was: `unique_key`, `transaction_id`, `message_id` or `half_offset`.
    found_by: str = ""
    #: `visible`, `prepared`, `parked`, `rolled_back`, or `waiting` for its time.
    state: str = ""
    #: When a waiting message becomes visible.
    due_at_ms: Int64 | None = None
    #: The half message; absent for a message without a transaction.
    half_offset: Int64 | None = None


class PreviewHalvesHeader(OwnHeader, frozen=True, kw_only=True):
    """PREVIEW_HALVES."""

    #: Messages to describe of each transaction, at most.
    messages_max: Int32 = 1
    #: Bytes of each body to answer, at most 4096.
    body_bytes: Int32 = 256


class PreviewHalvesAnswer(OwnAnswer, frozen=True, kw_only=True):
    """PREVIEW_HALVES."""

    #: Rows of the request that this answer covers, from the first one on.  Ask again for the rest.
    covered: Int32


class SoughtHalfRow(Row, frozen=True):
    """A transaction to describe."""

    #: Its first half message.
    half_offset: Int64


class PreviewRow(Row, frozen=True):
    """One message of a transaction."""

    #: As in the request.
    half_offset: Int64
    #: The message's place in its transaction, from 0 on, and the number of messages there.
    place: Int32
    message_count: Int64
    topic: str
    queue_id: Int32
    #: The offset message id.
    message_id: str
    unique_key: str
    #: With blanks between them.
    keys: str
    tags: str
    #: The first bytes of the body, and the size of the whole body.
    body: bytes
    body_bytes: Int64
    #: RocketMQ's bits; the lowest says that the body is compressed.
    sys_flag: Int32
