"""Tag subscriptions: ``*``, or tags with ``||`` between them.

A queue's entries hold a number for the message's tag, by which the broker filters.  Two tags may
share a number: the client looks at the tag itself again.
"""

from __future__ import annotations

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.properties import tags_code

ALL = "*"
TAGS_MAX = 4_096

_OR = "||"


class TagFilter(msgspec.Struct, frozen=True):
    """Which messages of a topic are wanted; None means all of them, with a tag or without."""

    codes: frozenset[int] | None

    def matches(self, code: int) -> bool:
        """Whether a message with this tags code may be wanted."""
        return self.codes is None or code in self.codes


EVERYTHING = TagFilter(None)


def parse_filter(expression: str | None) -> TagFilter:
    """Read a subscription expression; none at all wants everything."""
    if not expression or expression == ALL:
        return EVERYTHING
    parts = expression.split(_OR, TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise ProtocolViolation("filter_malformed", "too many tags", tags_max=TAGS_MAX)
    tags = {part.strip() for part in parts} - {""}
    if not tags:
        raise ProtocolViolation("filter_malformed", "no tag in it", expression=expression[:128])
    return TagFilter(frozenset(map(tags_code, tags)))
