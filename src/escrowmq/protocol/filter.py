"""Tag subscriptions: ``*``, or tags with ``||`` between them.

The broker filters by a code of the message's tag, which each queue entry holds. Two tags may share
a code, so the client compares the tag itself.
"""

from __future__ import annotations

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.properties import tags_code

ALL = "*"
TAGS_MAX = 4_096

_OR = "||"


class TagFilter(msgspec.Struct, frozen=True):
    """Tags codes that a subscription selects; None selects all messages, tagged or not."""

    codes: frozenset[int] | None

    def matches(self, code: int) -> bool:
        """Return whether a message with this tags code may match the subscription."""
        return self.codes is None or code in self.codes


EVERYTHING = TagFilter(None)


def parse_filter(expression: str | None) -> TagFilter:
    """Parse a subscription expression; an empty one or None selects everything."""
    if not expression or expression == ALL:
        return EVERYTHING
    parts = expression.split(_OR, TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise ProtocolViolation("filter_malformed", "too many tags", tags_max=TAGS_MAX)
    tags = {part.strip() for part in parts} - {""}
    if not tags:
        raise ProtocolViolation("filter_malformed", "no tag in it", expression=expression[:128])
    return TagFilter(frozenset(map(tags_code, tags)))
