"""Fields of READ_STORED, which returns thousands of messages as they were written.

``headers.py`` has the fields of the other requests.
"""

from __future__ import annotations

from escrowmq.protocol.message.limits import Name, NameList
from escrowmq.protocol.native.headers import NativeAnswer, NativeHeader
from escrowmq.protocol.remoting.headers import Int32, Int64


class ReadStoredHeader(NativeHeader, frozen=True, kw_only=True):
    """READ_STORED."""

    topic: Name
    queue_id: Int32
    #: Range of queue offsets: start, and exclusive end. The broker skips messages that retention
    #: has deleted.
    start: Int64
    end: Int64
    #: Most messages in the answer; 0 means as many as the broker allows.
    limit: Int32 = 0
    #: Most bytes of messages in the answer, except for a single larger message; 0 lets the broker
    #: choose.
    bytes_max: Int32 = 0
    #: Only messages whose tag has one of these comma-separated codes (Java's hash code); empty for
    #: all. Tags may share a code.
    tag_codes: NameList = ""
    #: `born` of the topic from LIST_QUEUES. If the topic was deleted and made again, the broker
    #: refuses the request, because the messages are gone. -1 accepts any.
    born: Int64 = -1


class ReadStoredAnswer(NativeAnswer, frozen=True, kw_only=True):
    """READ_STORED."""

    #: Queue offset for the next request.
    next_start: Int64
    #: The queue's range of offsets: start, and exclusive end.
    queue_start: Int64
    queue_end: Int64
