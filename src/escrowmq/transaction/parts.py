"""Transactions that came in more than one request, while they are undecided."""

from __future__ import annotations

import msgspec


class Parts(msgspec.Struct):
    """The rows of one transaction, in order of its requests' numbers."""

    ranges: list[tuple[int, int]]
    messages: int
    bytes: int


class PartsByHead(dict[int, Parts]):
    """The parts of each transaction, by its head.

    A checkpoint shares them with the core: there may be very many, and a copy of all of them would
    hold the event loop.  A transaction that grows copies its own parts first.
    """

    def __init__(self, known: dict[int, Parts] | None = None) -> None:
        super().__init__(known or {})
        #: Heads of those that are not shared.
        self._unshared: set[int] = set()

    def frozen(self) -> dict[int, Parts]:
        """All parts as they are now."""
        self._unshared.clear()
        return dict(self)

    def to_grow(self, head: int) -> Parts | None:
        """The parts of a transaction, to be changed in place."""
        parts = self.get(head)
        if parts is not None and head not in self._unshared:
            parts = Parts(list(parts.ranges), parts.messages, parts.bytes)
            self.add(head, parts)
        return parts

    def add(self, head: int, parts: Parts) -> None:
        """Take parts that are not shared."""
        self[head] = parts
        self._unshared.add(head)
