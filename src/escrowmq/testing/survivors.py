"""Who survives a power cut: strategies over the operations that were not yet flushed.

A strategy gets all pending operations of the disk, in the order in which they were made, and
returns those that reached it, in that order.  A torn write is replaced by its surviving parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from escrowmq.testing.journal import PendingOperation

Survivors = Callable[[Sequence[PendingOperation]], Iterable[PendingOperation]]


def nothing_survives(_pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """Only what was flushed is there."""
    return ()


def everything_survives(pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """The system had written everything back by itself."""
    return pending
