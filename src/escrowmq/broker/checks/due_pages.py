"""Finds due transactions in a state store that is not in memory."""

from __future__ import annotations

from functools import partial

from escrowmq.broker.write.following import Following
from escrowmq.store.disk.rows import Rows
from escrowmq.store.reading.listing import DueBy
from escrowmq.transaction.state_store import FoundStates, StateStore, WantedStates

SCAN_ROWS = 16_384
"""Rows of one scan: the event loop then reads each of them from the core."""


async def found_heads(following: Following, start: int, due_by: DueBy) -> tuple[Rows, int | None]:
    """Return a page of due rows, and where the next page starts; None after the last one.

    Raises:
        EscrowError: The state store is away or behind.
    """
    wanted = WantedStates(
        first=start,
        limit=SCAN_ROWS,
        check_at_ms=due_by.check_at_ms,
        stored_at_ms=due_by.stored_at_ms,
    )
    found = await following.ask(partial(_scan, wanted))
    return found.half_offsets, found.next_first


def _scan(wanted: WantedStates, states: StateStore) -> FoundStates:
    return states.scan(wanted)
