"""A block in the middle of a chain: it consumes a message, has an effect, and sends messages.

The order of its writes: insert the consumed row at entry, finish that row, insert the ledger row,
COMMIT. One COMMIT covers all of them, so the effect and both rows are stored together or not at
all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.client.consumed_block import ConsumedRow, rolled_back_unless_done
from escrowmq.client.ledger_block import LedgerBlock, RowFacts
from escrowmq.client.ledger_sql import POSTGRESQL

if TYPE_CHECKING:
    from escrowmq.client.database_block import Block, Steps
    from escrowmq.client.links import LinkFacts


class ChainRow(NamedTuple):
    """The consumed row and the ledger row of one transaction."""

    ledger: RowFacts
    consumed: ConsumedRow
    #: Whether a broker holds messages. Without messages no transaction needs a ledger row.
    is_sending: Callable[[], bool]

    def block(self, facts: LinkFacts, *, has_hooks: bool, max_duration_ms: int) -> Block:
        """Make the block that writes both rows."""
        return ChainBlock(facts, self, has_hooks=has_hooks, max_duration_ms=max_duration_ms)


class ChainBlock(LedgerBlock):
    """Block that records a consumed message and a committed transaction."""

    def __init__(
        self, facts: LinkFacts, row: ChainRow, *, has_hooks: bool, max_duration_ms: int
    ) -> None:
        super().__init__(facts, row.ledger, has_hooks=has_hooks, max_duration_ms=max_duration_ms)
        self._names |= row.consumed.names
        self._consumed = row.consumed
        self._is_sending = row.is_sending

    def _check_names(self) -> None:
        super()._check_names()
        self._consumed.check()

    def _open(self) -> Steps[None]:
        # Probe first, so that a ledger in another database is refused before any row is written.
        yield from super()._open()
        yield from rolled_back_unless_done(self, self._consumed.insert())

    def _write(self, now_ms: int) -> Steps[None]:
        if self._facts.dialect is not POSTGRESQL:
            yield from self._unmark_sqlite()
        mark = self._row.transaction_id
        yield from self._consumed.finish(self._facts.dialect, now_ms, mark)
        if self._is_sending():
            yield from self._insert_committed(now_ms)
