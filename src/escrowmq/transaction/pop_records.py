"""Records of pop positions: what consumer groups that read by pop have acknowledged."""

from __future__ import annotations

import msgspec


class PopPlaced(msgspec.Struct, frozen=True, array_like=True, tag=27, gc=False):
    """The group's pop position in a queue: it starts, is moved, or ends because the group pulls."""

    group: str
    queue: int
    #: Every message before this queue offset is acknowledged.
    prefix: int
    #: Bit n is set if the message at ``prefix + n`` is acknowledged; little-endian.
    above: bytes = b""
    #: The group pulls now; the position is kept in case it pops again.
    is_ended: bool = False


class PopAcknowledged(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Messages of a queue that need not be delivered to the group again.

    They were acknowledged, did not match its filter, or became dead letters.
    """

    group: str
    queue: int
    #: Every message before this queue offset is acknowledged, with this record.
    prefix: int
    #: Acknowledged beyond the prefix by this record: ``(first, count)``.
    ranges: list[tuple[int, int]]
