"""The order of a transaction block's steps, without I/O.

All half messages are acknowledged as durable, then the ledger row is written, then the database
commits, then the broker is told to commit. The broker is told ROLLBACK only if COMMIT was never
issued, or the database certainly refused it. The steps are generators that yield the next action,
so that sync and async programs share the order.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from escrowmq.client.messages.codecs import JSON, Codec
from escrowmq.client.messages.messages import Message
from escrowmq.client.messages.outgoing import HeldTransaction
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.client.database.transactions import TransactionEnding

log = event_log(__name__)

#: Maximum number of messages that a broker takes in one transaction.
MESSAGES_MAX = 4_096


class BlockStep(Enum):
    """The next action of a block."""

    #: Write the session's pending rows.
    FLUSH = "flush"

    # Methods of the database's transaction, by name.
    #: Returns the numbers of the messages to send, or None for all.
    SURVIVING = "surviving"
    INSERT_ROW = "insert_row"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    POISON = "poison"
    RELEASE = "release"

    # Requests to the broker.
    HOLD = "hold"
    DECIDE = "decide"
    #: Sent without waiting for the answer.
    TELL_ROLLBACK = "tell_rollback"


Steps: TypeAlias = Generator[BlockStep, Any, None]


class TransactionState(StrEnum):
    """State of a block."""

    OPEN = "open"
    #: The database has committed, and the messages are visible.
    COMMITTED = "committed"
    #: The database has committed, but the broker did not answer: a back-check will make the
    #: messages visible.
    COMMITTED_UNTOLD = "committed_untold"
    ROLLED_BACK = "rolled_back"
    #: COMMIT was interrupted. The ledger row has the outcome, and a back-check reads it.
    UNKNOWN = "unknown"


class TransactionSteps:
    """One block's messages and progress."""

    def __init__(
        self, transaction_id: str, *, is_consuming: bool = False, codec: Codec = JSON
    ) -> None:
        #: Empty for a consumer's block without a producer, which sends nothing.
        self.transaction_id = transaction_id
        #: Whether the block consumes a message: that row is written even if nothing is sent.
        self._is_consuming = is_consuming
        self._codec = codec
        self.messages: list[Message] = []
        #: The number of each of ``messages``; a rolled-back savepoint drops its messages' numbers.
        self._numbers: list[int] = []
        self._next_number = 0
        self.held: HeldTransaction | None = None
        self.state = TransactionState.OPEN
        #: Whether the ``with`` block is still running.
        self.is_inside = True
        #: Whether a new message would still be sent: inside the block, and during preparation.
        self._takes_messages = True
        #: Whether a failure reaches the handler as an exception of the block or of its own commit.
        self._is_failure_seen = False
        #: Why a hold failed. Raised again at the block's end: the broker may hold the messages.
        self._hold_failure: EscrowError | None = None

    @property
    def is_uncommitted(self) -> bool:
        """Whether a handler that returns now has failed: its writes are missing, or may be missing.

        A rollback does not count if the handler saw its error and chose to return.
        """
        if self.state is TransactionState.ROLLED_BACK:
            return not self._is_failure_seen
        return self.state in {TransactionState.OPEN, TransactionState.UNKNOWN}

    def check_takes(self) -> int:
        """Refuse a message that would never be sent; return the number of the next one."""
        if self.is_inside and (self.held is not None or self._hold_failure is not None):
            raise RequestRefused(
                "messages_held",
                "send every message of the block before tx.hold()",
                transaction_id=self.transaction_id,
            )
        if self.state is not TransactionState.OPEN or not self._takes_messages:
            raise RequestRefused(
                "transaction_over",
                "the block has ended: send inside it, or begin another one",
                transaction_id=self.transaction_id,
            )
        if len(self.messages) >= MESSAGES_MAX:
            raise RequestRefused(
                "too_many_messages", "use several transactions", messages_max=MESSAGES_MAX
            )
        return self._next_number

    def put(self, message: Message) -> None:
        """Keep a message until the end of the block."""
        self._numbers.append(self.check_takes())
        self.messages.append(message)
        self._next_number += 1

    def leave_block(self, error: BaseException | None, *, is_commit_owned_by_caller: bool) -> Steps:
        """Return the steps after the end of the ``with`` block."""
        self.is_inside = False
        # If our block issues the COMMIT and it fails, the ``with`` statement raises that error.
        self._is_failure_seen = error is not None or not is_commit_owned_by_caller
        if error is None and not is_commit_owned_by_caller:
            return self._end()
        self._takes_messages = False
        return self._leave_to_caller(error) if is_commit_owned_by_caller else self._roll_back()

    def hold_early(self) -> Steps:
        """Hold the messages now, inside the block. Do nothing if none are left, or if held."""
        if not self.is_inside or self.state is not TransactionState.OPEN:
            raise RequestRefused(
                "transaction_over",
                "the block has ended: hold inside it",
                transaction_id=self.transaction_id,
            )
        if self.held is None:
            yield from self._prepare()
            yield from self._hold()
            # The block accepts messages again if savepoints rolled back all messages so far.
            self._takes_messages = True

    # If the block commits.

    def _end(self) -> Steps:
        """Commit: the block ended without an error and owns the commit."""
        try:
            yield from self._prepare()
            yield from self._hold()
        except BaseException:
            yield from self._roll_back()
            raise
        if not self.messages and not self._is_consuming:
            yield from self._commit_alone()
            return
        try:
            yield BlockStep.INSERT_ROW
        except BaseException:
            # INSERT_ROW has rolled back, so nothing can commit any more.
            yield from self._rolled_back()
            raise
        # From here on, only the database knows the outcome.
        self.state = TransactionState.UNKNOWN
        try:
            yield BlockStep.COMMIT
        except OutcomeUnknown:
            raise
        except Exception:
            # The database refused, and committed nothing.
            yield from self._rolled_back()
            raise
        yield from self._committed()

    def _commit_alone(self) -> Steps:
        """Commit the user's transaction without a row, because nothing is sent."""
        self.state = TransactionState.UNKNOWN
        yield BlockStep.RELEASE
        try:
            yield BlockStep.COMMIT
        except BaseException:
            with suppress(Exception):
                yield BlockStep.ROLLBACK
            raise
        self.state = TransactionState.COMMITTED

    # If the caller commits, later.

    def _leave_to_caller(self, error: BaseException | None) -> Steps:
        """Leave the transaction to the caller, who continues and will commit."""
        if error is not None:
            # A caller that catches the error must not commit half the work.
            yield BlockStep.POISON
        elif not self.messages and not self._is_consuming:
            yield BlockStep.RELEASE

    def before_commit(self) -> Steps:
        """Prepare the caller's commit. An error here stops it, and the hook rolls back."""
        if self.is_inside:
            raise RequestRefused(
                "transaction_ended_inside",
                "the block must end before its transaction",
                **self._names(),
            )
        self._is_failure_seen = True
        yield from self._prepare()
        if not self.messages and not self._is_consuming:
            yield BlockStep.RELEASE
            return
        yield from self._hold()
        yield BlockStep.INSERT_ROW

    def ended(self, ending: TransactionEnding) -> Steps:
        """Act on the end of the caller's transaction."""
        # Imported here, so that programs without a database do not load database modules.
        from escrowmq.client.database.transactions import TransactionEnding

        if ending is TransactionEnding.COMMITTED:
            yield from self._committed()
        elif ending is TransactionEnding.ROLLED_BACK:
            yield from self._rolled_back()
        else:
            self.state = TransactionState.UNKNOWN

    # Shared steps.

    def _prepare(self) -> Steps:
        """Encode the messages that will be sent; drop those that a savepoint rolled back."""
        if self.held is not None or self._hold_failure is not None:
            # Bodies and marks stay as they were held, but the session may still have rows to write.
            yield BlockStep.FLUSH
            return
        if not self.messages:
            self._takes_messages = False
            return
        # The session's listeners may send during the flush, and so may functions of bodies.
        self._takes_messages = True
        yield BlockStep.FLUSH
        yield from self._drop_rolled_back()
        has_functions = False
        for message in self.messages:
            has_functions |= message.has_functions
            message.wire(self._codec)
        self._takes_messages = False
        if has_functions:
            yield from self._drop_rolled_back()

    def _drop_rolled_back(self) -> Steps:
        surviving = yield BlockStep.SURVIVING
        if surviving is None:
            return
        kept = [
            (number, message)
            for number, message in zip(self._numbers, self.messages, strict=True)
            if number in surviving
        ]
        self._numbers = [number for number, _ in kept]
        self.messages = [message for _, message in kept]

    def _hold(self) -> Steps:
        if self._hold_failure is not None:
            raise self._hold_failure
        if not self.messages or self.held is not None:
            return
        # Until the answer is here, the request counts as unanswered: it may be interrupted.
        self._hold_failure = self._unanswered("interrupted")
        try:
            self.held = yield BlockStep.HOLD
        except OutcomeUnknown as error:
            self._hold_failure = self._unanswered(str(error))
            raise self._hold_failure from error
        except EscrowError as error:
            self._hold_failure = error
            raise
        self._hold_failure = None

    def _unanswered(self, cause: str) -> Unavailable:
        return Unavailable(
            "hold_unanswered",
            "everything was rolled back: if the broker holds"
            " messages, a check finds no row for them",
            transaction_id=self.transaction_id,
            cause=cause,
        )

    def _roll_back(self) -> Steps:
        # If ROLLBACK is interrupted, the broker is not told; a back-check finds no row.
        yield BlockStep.ROLLBACK
        yield from self._rolled_back()

    def _rolled_back(self) -> Steps:
        self.state = TransactionState.ROLLED_BACK
        if self.held is not None:
            yield BlockStep.TELL_ROLLBACK

    def _committed(self) -> Steps:
        if self.held is None:
            self.state = TransactionState.COMMITTED
            return
        # The database has committed, so an error of the broker is no error of the block.
        self.state = TransactionState.COMMITTED_UNTOLD
        try:
            yield BlockStep.DECIDE
        except RequestRefused as refused:
            # For example, an operator has rolled the transaction back by hand, against the ledger.
            log.error("decision_refused", extra=self._facts(refused))  # noqa: TRY400 - no bug here
        except Exception as error:  # noqa: BLE001 - a back-check makes up for any error
            log.warning("commit_untold", extra=self._facts(error))
        else:
            self.state = TransactionState.COMMITTED

    def _names(self) -> dict[str, str]:
        return {"transaction_id": self.transaction_id} if self.transaction_id else {}

    def _facts(self, error: Exception) -> dict[str, str]:
        return {"transaction_id": self.transaction_id, "why": str(error)}
