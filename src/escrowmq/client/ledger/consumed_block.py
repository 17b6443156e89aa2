"""A consumer's block: it records the message in the handler's own transaction.

The row is inserted when the block is entered, so that the second of two concurrent deliveries waits
for the first. The block's last statement finishes the row. The row exists if and only if the
handler's effect does; an unfinished row means that the transaction was committed half-way.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.client.database import ledger_sql
from escrowmq.client.database.block import (
    BlockTerms,
    DatabaseBlock,
    Execute,
    Steps,
    ended_inside,
    undone,
)
from escrowmq.client.database.errors import Failure, failure_of
from escrowmq.client.database.ledger_sql import POSTGRESQL, Dialect
from escrowmq.client.ledger.producer_block import known_error
from escrowmq.client.messages.handling import AlreadyConsumed
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable

if TYPE_CHECKING:
    from escrowmq.client.messages.messages import Received


class ConsumedRow(NamedTuple):
    """The record that a group has consumed a message."""

    consumer_group: str
    topic: str
    message_id: str
    body_checksum: int

    @classmethod
    def of(cls, group: str, message: Received) -> ConsumedRow:
        """Make the row of a message."""
        digest = blake2b(message.body, digest_size=8).digest()
        checksum = int.from_bytes(digest, "big", signed=True)
        return cls(group, message.topic, message.message_id, checksum)

    @property
    def key(self) -> tuple[str, str, str]:
        """The primary key of the row."""
        return self.consumer_group, self.topic, self.message_id

    @property
    def names(self) -> dict[str, str]:
        """The message's topic and id, which errors carry."""
        return {"topic": self.topic, "message_id": self.message_id}

    def check(self) -> None:
        """Refuse names that the database could not return unchanged."""
        for name in self.key:
            if not ledger_sql.is_name(name):
                raise RequestRefused(
                    "message_not_recordable",
                    "its group, topic and id must be 1 to 255 printable characters",
                    name=name,
                    **self.names,
                )

    def insert(self) -> Steps[None]:
        """Record that the message is being consumed, or raise AlreadyConsumed."""
        done = yield Execute(ledger_sql.INSERT_CONSUMED, (*self.key, str(self.body_checksum)))
        if done.row_count == 1:
            return
        found = yield Execute(ledger_sql.READ_CONSUMED, self.key)
        # A row newer than the transaction's snapshot is invisible: assume that it is finished.
        checksum, consumed_at_ms = found.rows[0] if found.rows else (self.body_checksum, 1)
        if checksum != self.body_checksum:
            raise RequestRefused(
                "message_differs", "a message with this id had another body", **self.names
            )
        if not consumed_at_ms:
            raise RequestRefused(
                "consumed_in_part",
                "the handler's transaction was committed before its block had ended",
                **self.names,
            )
        raise AlreadyConsumed("already_consumed", **self.names)

    def finish(self, dialect: Dialect, now_ms: int, mark: str) -> Steps[None]:
        """Record that the message was consumed, in the transaction that carries the mark."""
        values = (str(now_ms), *self.key)
        if dialect is POSTGRESQL:
            done = yield Execute(ledger_sql.PG_FINISH_CONSUMED, (*values, mark))
        else:
            done = yield Execute(ledger_sql.FINISH_CONSUMED, values)
        if done.row_count != 1:
            raise ended_inside()

    def block(self, terms: BlockTerms) -> DatabaseBlock:
        """Make the block that writes this row."""
        return ConsumedBlock(terms, self)


class ConsumedBlock(DatabaseBlock):
    """Block that records a consumed message."""

    def __init__(self, terms: BlockTerms, row: ConsumedRow) -> None:
        super().__init__(terms, row.names)
        self._row = row

    def _check_names(self) -> None:
        self._row.check()

    def _open(self) -> Steps[None]:
        # Roll back after an error, so that the caller cannot commit an unfinished row.
        yield from undone(self._mark_and_insert(), self.rollback, not_recorded)

    def _mark_and_insert(self) -> Steps[None]:
        if self._facts.dialect is POSTGRESQL:
            yield Execute(ledger_sql.PG_MARK, (self._row.message_id,))
        else:
            yield from self._mark_sqlite()
        yield from self._row.insert()

    def _write(self, now_ms: int) -> Steps[None]:
        yield from self._row.finish(self._facts.dialect, now_ms, self._row.message_id)

    def _not_written(self, error: Exception) -> EscrowError:
        return not_recorded(error)


def not_recorded(error: Exception) -> EscrowError:
    """Return the error that says why the database did not take the row."""
    if failure_of(error) is Failure.READ_ONLY:
        return RequestRefused("read_only_transaction", "the message cannot be recorded")
    not_taken = Unavailable("message_not_recorded", "it was rolled back", cause=str(error))
    return known_error(error) or not_taken
