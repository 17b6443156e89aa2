"""Pop positions: what each consumer group that reads by pop has acknowledged in each queue.

A position is a prefix of the queue and a bitmap of what is acknowledged beyond it. A queue's number
names the topic's incarnation too, so a position never outlives its topic. Positions are values:
a checkpoint shares them with the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from escrowmq.transaction.pop_records import PopAcknowledged, PopPlaced

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from escrowmq.transaction.records import PopRecord

AHEAD_MAX = 262_144
"""How far acknowledgements may be beyond the prefix. The bitmap has at most 32 KiB."""

POSITIONS_MAX = 100_000
"""Pairs of group and queue with a position."""


class PopPosition(msgspec.Struct, frozen=True, gc=False):
    """How far a group has acknowledged a queue."""

    #: Every message before this queue offset is acknowledged.
    prefix: int
    #: Bit n is set if the message at ``prefix + n`` is acknowledged. Bit 0 is never set.
    above: bytes = b""
    #: The group pulls now.
    is_ended: bool = False

    def has(self, offset: int) -> bool:
        """Whether the message at this offset is acknowledged."""
        at, bit = divmod(offset - self.prefix, 8)
        return at < 0 or (at < len(self.above) and bool(self.above[at] >> bit & 1))

    def acknowledged(self, start: int, ranges: Iterable[tuple[int, int]]) -> PopPosition:
        """Return the position once everything below ``start`` and these ranges are acknowledged.

        The position leaves out offsets too far beyond the prefix: they will be delivered again.
        """
        bits = int.from_bytes(self.above, "little")
        prefix = self.prefix
        if start > prefix:
            bits >>= start - prefix
            prefix = start
        for first, count in ranges:
            low, high = max(first - prefix, 0), min(first + count - prefix, AHEAD_MAX)
            if high > low:
                bits |= ((1 << high - low) - 1) << low
        # The prefix moves over the ones at the low end.
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        above = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return PopPosition(prefix + ones, above, self.is_ended)


class PopPositions:
    """The pop positions of all groups."""

    def __init__(self, saved: dict[str, dict[int, PopPosition]] | None = None) -> None:
        #: By group, then by queue number; a group without positions is not here.
        self.groups = {group: dict(places) for group, places in (saved or {}).items()}

    @property
    def count(self) -> int:
        """Number of positions."""
        return sum(map(len, self.groups.values()))

    def get(self, group: str, queue: int) -> PopPosition | None:
        """The group's position in a queue; None if it has never read it by pop."""
        return self.groups.get(group, {}).get(queue)

    def apply(self, record: PopRecord, queues: Collection[int]) -> None:
        """Apply a record about one of these queues. Applying it again changes nothing."""
        # Recovery may replay the log on a later state, in which the queue is deleted.
        if record.queue not in queues:
            return
        match record:
            case PopPlaced():
                place = PopPosition(record.prefix, record.above, record.is_ended)
                self.groups.setdefault(record.group, {})[record.queue] = place
            case PopAcknowledged():
                known = self.get(record.group, record.queue)
                if known is not None:
                    moved = known.acknowledged(record.prefix, record.ranges)
                    self.groups[record.group][record.queue] = moved
            case _:
                assert_never(record)

    def forget_group(self, name: str) -> None:
        """Forget the positions of a removed group."""
        self.groups.pop(name, None)

    def forget_queues(self, queues: Collection[int]) -> None:
        """Forget all positions in the queues of a removed topic."""
        for group in list(self.groups):
            places = self.groups[group]
            for queue in places.keys() & set(queues):
                del places[queue]
            if not places:
                del self.groups[group]

    def frozen(self) -> dict[str, dict[int, PopPosition]]:
        """Return the positions for a checkpoint."""
        return PopPositions(self.groups).groups
