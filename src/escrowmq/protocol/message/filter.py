"""Tag subscriptions: ``*``, or tags with ``||`` between them.

The broker filters by a code of the message's tag, which each queue entry holds. Two tags may share
a code, so the client compares the tag itself.
"""

from __future__ import annotations

from typing import TypeAlias

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.properties import tags_code

ALL = "*"
TAGS_MAX = 4_096

_OR = "||"

TagCodes: TypeAlias = frozenset[int] | None
"""Codes of the tags that a subscription selects; None selects all messages, tagged or not."""


def parse_filter(expression: str | None) -> TagCodes:
    """Parse a subscription expression; an empty one or None selects everything."""
    if not expression or expression == ALL:
        return None
    parts = expression.split(_OR, TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise ProtocolViolation("filter_malformed", "too many tags", tags_max=TAGS_MAX)
    tags = {part.strip() for part in parts} - {""}
    if not tags:
        raise ProtocolViolation(
            "filter_malformed", "the expression has no tag", expression=expression[:128]
        )
    return frozenset(map(tags_code, tags))
