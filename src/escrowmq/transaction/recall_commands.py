"""The command that takes a delayed message back, and its reply."""

from __future__ import annotations

import msgspec


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """Take back a delayed message that is not visible yet. Half messages are rolled back instead.

    ``log_offset`` and ``epoch`` are those under which the broker stored the message.
    """

    half_offset: int
    log_offset: int
    #: Empty if the message is older than every epoch that the broker remembers.
    epoch: str
    by: str


class RecallReply(msgspec.Struct, frozen=True, kw_only=True):
    """The message is recalled, and never becomes visible."""

    half_offset: int
    #: True when it had been recalled before this request.
    repeated: bool
