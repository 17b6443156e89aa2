"""The command that pauses and resumes a consumer group."""

from __future__ import annotations

import msgspec


class PauseGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Stop or restart the delivery of messages to a consumer group."""

    name: str
    #: False resumes the group.
    is_paused: bool
    by: str
    reason: str = ""
