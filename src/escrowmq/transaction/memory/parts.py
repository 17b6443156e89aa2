"""Undecided transactions that came in more than one request."""

from __future__ import annotations

import msgspec


class TransactionParts(msgspec.Struct):
    """The rows of one transaction, in order of its requests' numbers."""

    ranges: list[tuple[int, int]]
    messages: int
    bytes: int


class PartsByHead(dict[int, TransactionParts]):
    """The parts of each transaction, by its head.

    A checkpoint shares them with the core: there may be very many, and copying all of them would
    block the event loop. A transaction that grows copies its own parts first.
    """

    def __init__(self, known: dict[int, TransactionParts] | None = None) -> None:
        super().__init__(known or {})
        #: Heads of the transactions whose parts no checkpoint shares.
        self._unshared: set[int] = set()

    def frozen(self) -> dict[int, TransactionParts]:
        """Return all parts for a checkpoint, which shares them from now on."""
        self._unshared.clear()
        return dict(self)

    def to_grow(self, head: int) -> TransactionParts | None:
        """Return the parts of a transaction to change in place; shared ones are copied first."""
        parts = self.get(head)
        if parts is not None and head not in self._unshared:
            parts = TransactionParts(list(parts.ranges), parts.messages, parts.bytes)
            self.add(head, parts)
        return parts

    def add(self, head: int, parts: TransactionParts) -> None:
        """Add parts that are not shared."""
        self[head] = parts
        self._unshared.add(head)
