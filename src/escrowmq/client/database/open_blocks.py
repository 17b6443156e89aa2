"""Registry of the connections inside a block: a connection takes part in one block at a time.

The inner of two blocks would commit the rows of the outer one, whose messages may still be rolled
back. The key is the driver's connection, so a SQLAlchemy session and the connection below it count
as one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.database.block import DatabaseBlock

# sqlite3 connections allow neither attributes nor weak references, so their ids are the keys.
# A claim keeps its connection alive: no other connection gets the same id while the claim lives.
_claims: WeakValueDictionary[int, BlockClaim] = WeakValueDictionary()
_lock = threading.Lock()


class BlockClaim:
    """A block's claim on a connection; it ends with the block, or when it is garbage-collected."""

    def __init__(self, connection: object, block: DatabaseBlock) -> None:
        """Refuse if another block holds the connection."""
        self._connection = connection
        self.block = block
        with _lock:
            if is_in_block(connection):
                raise already_open()
            _claims[id(connection)] = self

    def give_up(self) -> None:
        """Free the connection of a block that could not begin."""
        with _lock:
            if _claims.get(id(self._connection)) is self:
                del _claims[id(self._connection)]


def is_in_block(connection: object) -> bool:
    """Whether a driver's connection takes part in a block that has not ended."""
    claim = _claims.get(id(connection))
    return claim is not None and claim.block.is_unfinished


def already_open() -> RequestRefused:
    """Return the refusal for a second block on a connection."""
    return RequestRefused(
        "block_already_open",
        "one block at a time on a connection: end the first, or pass its block to the callee",
    )
