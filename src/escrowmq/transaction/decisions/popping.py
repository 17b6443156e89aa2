"""Decisions about pop positions: where a group starts, and what it has acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Append, Decision
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.decisions.holding import append
from escrowmq.transaction.memory.pops import POSITIONS_MAX, PopPosition
from escrowmq.transaction.pop_records import PopAcknowledged, PopPlaced

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.pop_commands import Acknowledge, BuryMessages, PlacePops


def place_pops(core: Transactions, command: PlacePops, _now_ms: int) -> Decision:
    """Place a group's pop positions; a queue that was removed meanwhile needs none."""
    group = command.group
    if group not in core.catalog.groups:
        return refuse(
            "group_unknown", "the group was removed in the meantime", consumer_group=group
        )
    records, new = [], 0
    for place in command.places:
        end = core.queue_ends.get(place.queue)
        if end is None:
            continue
        if not 0 <= place.prefix <= end:
            return refuse(
                "bad_offset", "the offset must be in the queue", offset=place.prefix, end=end
            )
        position = core.pops.get(group, place.queue)
        new += position is None
        if position is None or place.is_reset or place.prefix < position.prefix:
            position = PopPosition(place.prefix)
        records.append(
            PopPlaced(group, place.queue, position.prefix, position.above, place.is_ended)
        )
    if new and core.pops.count + new > POSITIONS_MAX:
        return refuse(
            "pop_positions_limit", "remove unused consumer groups", positions_max=POSITIONS_MAX
        )
    return Decision(records=tuple(records))


def acknowledge(core: Transactions, command: Acknowledge, _now_ms: int) -> Decision:
    """Acknowledge messages; those of removed topics and groups need no record."""
    return Decision(records=tuple(_acknowledged(core, command)))


def bury(core: Transactions, command: BuryMessages, now_ms: int) -> Decision:
    """Store dead letters and acknowledge their originals in one frame."""
    stored = append(core, Append(messages=command.messages), now_ms)
    if stored.refused is not None:
        return stored
    records = (*_acknowledged(core, command.acknowledges), *stored.records)
    return Decision(records=records, messages=stored.messages)


def _acknowledged(core: Transactions, command: Acknowledge) -> list[PopAcknowledged]:
    records = []
    for acks in command.acks:
        known = core.pops.get(command.group, acks.queue)
        if known is None:
            continue
        end = core.queue_ends[acks.queue]
        ranges = [(first, count) for first, count in acks.ranges if 0 <= first <= end - count]
        moved = known.acknowledged(min(acks.start, end), ranges)
        if moved != known:
            beyond = [(first, count) for first, count in ranges if first + count > moved.prefix]
            records.append(PopAcknowledged(command.group, acks.queue, moved.prefix, beyond))
    return records
