"""LIST_STATE_STORE: undecided transactions as the chosen state store has them.

Every other answer comes from the core and its state table, which hide a wrong record of ``mapped``
or ``sql``. The follower's thread reads the state store, so no page holds the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from escrowmq.broker.native.calls import Call, looks, offset_cursor
from escrowmq.broker.write.following import Following
from escrowmq.broker.write.guard import guarded
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.comparisons import ListStateStoreHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import FoundStates, StateStore, WantedStates
from escrowmq.transaction.states import State

_UNDECIDED = (State.PREPARED, State.PARKED)


@dataclass(frozen=True, slots=True)
class StateListing:
    """Handles LIST_STATE_STORE. Use it from one event loop only."""

    writer: Writer
    _pages: set[asyncio.Task[None]] = field(default_factory=set)

    @looks(NativeCode.LIST_STATE_STORE)
    def state_store(self, call: Call[ListStateStoreHeader]) -> None:
        """List what the state store has, once its thread has read a page."""
        following = self.writer.following
        if following is None:
            raise RequestRefused("state_store_is_table", "use LIST_TRANSACTIONS")
        call.request.owe()
        page = asyncio.get_running_loop().create_task(_answer(following, call))
        self._pages.add(page)
        page.add_done_callback(self._pages.discard)
        page.add_done_callback(lambda read: guarded(call.request.decline, _end, call, read))


def _end(call: Call[ListStateStoreHeader], read: asyncio.Task[None]) -> None:
    call.request.answered()
    read.result()


async def _answer(following: Following, call: Call[ListStateStoreHeader]) -> None:
    header = call.header
    wanted = WantedStates(
        first=offset_cursor(header.cursor, max(header.start, 0)),
        end=header.end if header.end >= 0 else NEVER,
        limit=call.limit(),
        states=_UNDECIDED,
    )
    # When the follower's thread reads, the state store has followed the log at least to here.
    log_offset = following.follower.log_offset
    found, heads = await following.ask(partial(_read_page, wanted))
    call.answer_list(
        {
            "half_offset": lambda: found.half_offsets,
            "is_head": lambda: np.isin(found.half_offsets, heads),
        },
        cursor=None if found.next_first is None else str(found.next_first),
        log_offset=log_offset,
    )


def _read_page(wanted: WantedStates, states: StateStore) -> tuple[FoundStates, Rows]:
    """Return a page of undecided rows, and which rows stand for their transactions."""
    found = states.scan(wanted)
    end = wanted.end if found.next_first is None else found.next_first
    heads: Rows = states.snapshot(wanted.first, end)["half_offset"]
    return found, heads
