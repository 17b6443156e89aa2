"""A consumer's block: the message is recorded in the handler's own transaction.

The row is inserted when the block is entered, so that of two deliveries at a time the second waits
for the first, and finished as the last statement.  It is there if and only if the handler's effect
is; a row that is there and not finished tells of a transaction that was committed half-way.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.client import ledger_sql
from escrowmq.client.database_block import Act, Block, Execute, Steps, ended_inside
from escrowmq.client.database_errors import Failure, aborted, failure_of
from escrowmq.client.handling import AlreadyConsumed
from escrowmq.client.ledger_block import missing
from escrowmq.client.ledger_sql import POSTGRESQL
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable

if TYPE_CHECKING:
    from escrowmq.client.links import LinkFacts
    from escrowmq.client.messages import Received


class ConsumedRow(NamedTuple):
    """Which message, for which group."""

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
    def names(self) -> tuple[str, str, str]:
        """What finds it."""
        return self.consumer_group, self.topic, self.message_id

    def block(self, facts: LinkFacts, *, has_hooks: bool, max_duration_ms: int) -> Block:
        """Make the block that writes it."""
        return ConsumedBlock(facts, self, has_hooks=has_hooks, max_duration_ms=max_duration_ms)


class ConsumedBlock(Block):
    """Writes that a message was consumed."""

    def __init__(
        self, facts: LinkFacts, row: ConsumedRow, *, has_hooks: bool, max_duration_ms: int
    ) -> None:
        super().__init__(
            facts,
            names={"topic": row.topic, "message_id": row.message_id},
            has_hooks=has_hooks,
            max_duration_ms=max_duration_ms,
        )
        self._row = row

    def _check_names(self) -> None:
        for name in self._row.names:
            if not ledger_sql.is_name(name):
                raise RequestRefused(
                    "message_not_recordable",
                    "its group, topic and id must be 1 to 255 printable characters",
                    name=name,
                    **self._names,
                )

    def _open(self) -> Steps[None]:
        try:
            if self._facts.dialect is POSTGRESQL:
                yield Execute(ledger_sql.PG_MARK, (self._row.message_id,))
            else:
                yield from self._mark_sqlite()
            yield from self._insert()
        except EscrowError:
            yield Act.ROLLBACK
            raise
        except Exception as error:
            yield Act.ROLLBACK
            raise self._not_written(error) from error

    def _insert(self) -> Steps[None]:
        row = self._row
        values = (*row.names, str(row.body_checksum))
        done = yield Execute(ledger_sql.INSERT_CONSUMED, values)
        if done.row_count == 1:
            return
        found = yield Execute(ledger_sql.READ_CONSUMED, row.names)
        # None where the transaction's snapshot is older than the row.
        checksum, consumed_at_ms = found.rows[0] if found.rows else (row.body_checksum, 1)
        if checksum != row.body_checksum:
            raise RequestRefused(
                "message_differs", "a message with this id had another body", **self._names
            )
        if not consumed_at_ms:
            raise RequestRefused(
                "consumed_in_part",
                "the handler's transaction was committed before its block had ended",
                **self._names,
            )
        raise AlreadyConsumed("already_consumed", **self._names)

    def _write(self, now_ms: int) -> Steps[None]:
        values = (str(now_ms), *self._row.names)
        if self._facts.dialect is POSTGRESQL:
            finish = Execute(ledger_sql.PG_FINISH_CONSUMED, (*values, self._row.message_id))
        else:
            yield from self._unmark_sqlite()
            finish = Execute(ledger_sql.FINISH_CONSUMED, values)
        done = yield finish
        if done.row_count != 1:
            raise ended_inside()

    def _not_written(self, error: Exception) -> EscrowError:
        match failure_of(error):
            case Failure.NO_TABLE:
                return missing(error)
            case Failure.ABORTED:
                return aborted()
            case Failure.READ_ONLY:
                return RequestRefused("read_only_transaction", "the message cannot be recorded")
        return Unavailable("message_not_recorded", "it was rolled back", cause=str(error))
