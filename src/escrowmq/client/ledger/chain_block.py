"""A block in the middle of a chain: it consumes a message, has an effect, and sends messages.

The order of its writes: insert the consumed row at entry, finish that row, insert the ledger row,
COMMIT. One COMMIT covers all of them, so the effect and both rows are stored together or not at
all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.client.database.block import undone
from escrowmq.client.ledger.consumed_block import ConsumedRow, not_recorded
from escrowmq.client.ledger.producer_block import LedgerBlock, RowFacts

if TYPE_CHECKING:
    from escrowmq.client.database.block import BlockTerms, DatabaseBlock, Steps


class ChainRow(NamedTuple):
    """The consumed row and the ledger row of one transaction."""

    ledger: RowFacts
    consumed: ConsumedRow
    #: Returns whether a broker holds messages of the block. Without any, no ledger row is written.
    is_sending: Callable[[], bool]

    def block(self, terms: BlockTerms) -> DatabaseBlock:
        """Make the block that writes both rows."""
        return ChainBlock(terms, self)


class ChainBlock(LedgerBlock):
    """Block that records a consumed message and a committed transaction."""

    def __init__(self, terms: BlockTerms, row: ChainRow) -> None:
        super().__init__(terms, row.ledger)
        self._names |= row.consumed.names
        self._consumed = row.consumed
        self._is_sending = row.is_sending

    def _check_names(self) -> None:
        super()._check_names()
        self._consumed.check()

    def _open(self) -> Steps[None]:
        # Probe first, so that a ledger in another database is refused before any row is written.
        yield from super()._open()
        yield from undone(self._consumed.insert(), self.rollback, not_recorded)

    def _write(self, now_ms: int) -> Steps[None]:
        yield from self._consumed.finish(self._facts.dialect, now_ms, self._row.transaction_id)
        if self._is_sending():
            yield from self._insert_committed(now_ms)
