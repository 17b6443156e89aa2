"""The state of Spark sink attempts, for Spark drivers, and for the pipeline's rounds.

The rounds of another broker that holds parts of an attempt ask its home, which is this broker.

An attempt is looked up by its half offset, so an answer exists as long as the log has the attempt,
decided or not. The id in the request must be the id in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from escrowmq.broker.native.calls import Call, looks
from escrowmq.model.sink_attempt import GROUP_PREFIX, HOME_MARK
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SoughtAttemptRow
from escrowmq.protocol.native.sink_headers import FindAttemptsHeader
from escrowmq.store.reading.identities import identities
from escrowmq.store.store import Store
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half


@dataclass(frozen=True, slots=True)
class NativeAttempts:
    """Handles FIND_ATTEMPTS."""

    store: Store

    @looks(NativeCode.FIND_ATTEMPTS)
    def find(self, call: Call[FindAttemptsHeader]) -> None:
        """Answer with the state of each attempt."""
        core, group = self.store.core, call.header.producer_group
        sought = call.rows(SoughtAttemptRow)
        halves = [self._half(row, group) for row in sought]
        found = [half for half in halves if half is not None]
        ids, _ = identities(
            self.store,
            np.array([half.half_offset for half in found], dtype=np.int64),
            np.array([half.location for half in found], dtype=np.int64),
        )
        id_of = {half.half_offset: found_id for half, found_id in zip(found, ids, strict=True)}
        call.answer_rows(
            [
                _told(core, row, half)
                if half is not None and id_of[row.half_offset] == row.transaction_id.encode()
                else (row.half_offset, None, None, None)
                for row, half in zip(sought, halves, strict=True)
            ],
            is_known=is_known(core, group),
            # This scans all groups, so only requests without rows get it. Drivers send few of them.
            homes="" if sought else ",".join(homes_of(core, group)),
            log_end=self.store.durable_end,
            judged=judged(core, call.header),
        )

    def _half(self, row: SoughtAttemptRow, group: str) -> Half | None:
        core = self.store.core
        half = core.half(row.half_offset)
        # The core forgets the head of a decided transaction: any request's first row passes then.
        if half is None or core.head_of(half.first) != row.half_offset:
            return None
        # An expired group matches any name; the id, which holds a UUID, is then enough.
        return half if core.names.origins.is_of(half.origin, group) else None


def is_known(core: Transactions, group: str) -> bool:
    """Return whether the group held messages or its app id decided a batch, and has not expired."""
    return group in core.names.origins.groups or core.batches.knows(
        group.removeprefix(GROUP_PREFIX)
    )


def judged(core: Transactions, header: FindAttemptsHeader) -> str:
    """Return the state of the batch in the request; empty if it names none."""
    batch = header.batch_number if header.batch_name is None else header.batch_name
    if batch is None:
        return ""
    app_id = header.producer_group.removeprefix(GROUP_PREFIX)
    return core.batches.judge(app_id, header.query_id, batch, header.content)


def homes_of(core: Transactions, group: str) -> list[str]:
    """Return the other brokers that decide about parts of this app id held here."""
    prefix = group + HOME_MARK
    groups = (name for name in core.names.origins.groups if name.startswith(prefix))
    return sorted(name.removeprefix(prefix) for name in groups)


def _told(core: Transactions, row: SoughtAttemptRow, half: Half) -> Sequence[object]:
    if half.state in (State.COMMITTED, State.ROLLED_BACK):
        return row.half_offset, half.state.label, None, None
    held = core.ranges_of(row.half_offset)
    return row.half_offset, half.state.label, len(held) - 1, sum(count for _, count in held)
