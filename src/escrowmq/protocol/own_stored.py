"""The fields of READ_STORED: messages by the thousand, as they were written.

As ``own_headers.py``, which has all the others.
"""

from __future__ import annotations

from escrowmq.protocol.headers import Int32, Int64
from escrowmq.protocol.limits import Name, NameList
from escrowmq.protocol.own_headers import OwnAnswer, OwnHeader


class ReadStoredHeader(OwnHeader, frozen=True, kw_only=True):
    """READ_STORED."""

    topic: Name
    queue_id: Int32
    #: Queue offsets: from, and up to.  What retention has deleted is passed over.
    start: Int64
    end: Int64
    #: Messages to answer at most; 0 means as many as there may be.
    limit: Int32 = 0
    #: Bytes of messages to answer at most, but for one that is larger; 0 lets the broker say.
    bytes_max: Int32 = 0
    #: Only messages whose tag has one of these codes (Java's hash code), with commas between
    #: them; empty for all.  Tags may share a code.
    tag_codes: NameList = ""
    #: Where the topic began, as LIST_QUEUES tells it: if that is no longer so, the messages are
    #: gone, and the request is refused; -1 for any.
    born: Int64 = -1


class ReadStoredAnswer(OwnAnswer, frozen=True, kw_only=True):
    """READ_STORED."""

    #: Where to read on.
    next_start: Int64
    #: The queue's offsets: from, and up to.
    queue_start: Int64
    queue_end: Int64
