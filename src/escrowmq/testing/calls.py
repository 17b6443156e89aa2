"""One-line calls for the commands that a test sends to an engine.

``MemoryEngine`` (the core on a ``MemoryTable``) and ``Engine`` (on a disk) have these calls. A call
raises a refusal; ``submit`` returns it in the decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import KEYS, TAGS, UNIQ_KEY, format_properties
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.settler import CheckableTransaction
from escrowmq.transaction.commands import (
    Append,
    Appended,
    CheckSent,
    Command,
    Decision,
    End,
    EndReply,
    HoldReply,
    Park,
    Prepare,
    Release,
    Resume,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions

ROWS_MAX = 100_000

ReplyT = TypeVar("ReplyT")


def message(
    body: bytes = b"body",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    unique_key: str = "",
    keys: tuple[str, ...] = (),
    tags: str = "",
    deliver_after_ms: int = 0,
    deliver_at_ms: int = 0,
) -> SentMessage:
    """Return a message as a producer sends it, with encoded properties."""
    pairs = {UNIQ_KEY: unique_key, KEYS: " ".join(keys), TAGS: tags}
    return SentMessage(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=format_properties({name: value for name, value in pairs.items() if value}),
        unique_key=unique_key,
        keys=keys,
        tags=tags,
        deliver_after_ms=deliver_after_ms,
        deliver_at_ms=deliver_at_ms,
    )


class Calls(ABC):
    """An engine's commands as methods. The engine implements ``submit``, ``due`` and ``core``."""

    def __init__(self, clock: ManualClock | None, policy: CheckPolicy | None) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.policy = CheckPolicy() if policy is None else policy

    @property
    @abstractmethod
    def core(self) -> Transactions:
        """The transactions, for inspection."""

    @abstractmethod
    def submit(self, command: Command) -> Decision:
        """Execute the command and make it durable. A refusal is in the decision."""

    @abstractmethod
    def due(self, until_ms: int, limit: int) -> list[int]:
        """Return rows that are due by then: undecided heads and scheduled messages."""

    def prepare(
        self,
        transaction_id: str,
        *messages: SentMessage,
        group: str = "producers",
        number: int | None = None,
        bulk: bool = False,
        ledger: str = "",
        allowed_ms: int = 0,
        check_after_ms: int | None = None,
    ) -> HoldReply:
        """Hold half messages; by default one with the body ``body``."""
        command = Prepare(
            group=group,
            transaction_id=transaction_id,
            messages=messages or (message(),),
            number=number,
            bulk=bulk,
            ledger=ledger,
            allowed_ms=allowed_ms,
            check_after_ms=check_after_ms,
        )
        return self._reply(command, HoldReply)

    def append(self, *messages: SentMessage) -> Appended:
        """Store ordinary messages."""
        return self._reply(Append(messages=messages), Appended)

    def commit(self, half_offset: int, by: str = "producer") -> EndReply:
        """Commit the transaction of this half message."""
        return self.end(half_offset, Resolution.COMMIT, by)

    def rollback(self, half_offset: int, by: str = "producer") -> EndReply:
        """Roll back the transaction of this half message."""
        return self.end(half_offset, Resolution.ROLLBACK, by)

    def end(self, half_offset: int, resolution: Resolution, by: str = "producer") -> EndReply:
        """Decide the transaction of this half message."""
        return self._reply(End(half_offset=half_offset, resolution=resolution, by=by), EndReply)

    def check_sent(self, half_offset: int, client: str = "producer") -> None:
        """Count a back-check."""
        accepted(self.submit(CheckSent(half_offset=half_offset, client=client)))

    def park(self, half_offset: int, reason: str = "by_hand") -> None:
        """Stop the checks of a transaction."""
        accepted(self.submit(Park(half_offset=half_offset, reason=reason)))

    def resume(self, half_offset: int, by: str = "operator") -> None:
        """Restart the checks of a parked transaction."""
        accepted(self.submit(Resume(half_offset=half_offset, by=by)))

    def release_due(self) -> list[int]:
        """Make all scheduled messages that are due visible; return their rows."""
        rows = [
            row
            for row in self.due(self.clock.now_ms(), ROWS_MAX)
            if self.state(row) is State.COMMITTED
        ]
        if rows:
            accepted(self.submit(Release(half_offsets=tuple(rows))))
        return rows

    def state(self, half_offset: int) -> State:
        """Return the state of this half message."""
        return self.core.row(half_offset).state

    def undecided(self, limit: int = ROWS_MAX) -> list[CheckableTransaction]:
        """Return the facts for the time rules about each transaction that may be checked."""
        heads = self.due(NEVER - 1, limit)
        facts = (self._undecided(head) for head in heads)
        return [fact for fact in facts if fact.state is State.PREPARED]

    def _undecided(self, head: int) -> CheckableTransaction:
        core, now_ms = self.core, self.clock.now_ms()
        half = core.row(head)
        is_half = half.state is State.PREPARED
        origin = core.names.origins[half.origin] if is_half else None
        return CheckableTransaction(
            half_offset=head,
            transaction_id=core.table.identity(half)[0] if is_half else "",
            group=origin.group if origin else "",
            ledger=origin.ledger if origin else "",
            allowed_ms=origin.allowed_ms if origin else 0,
            state=half.state,
            age_ms=now_ms - max(half.stored_at_ms, core.resumed_at_ms.get(head, 0)),
            wait_ms=half.next_at_ms - now_ms,
            checks_sent=half.checks_sent,
        )

    def _reply(self, command: Command, kind: type[ReplyT]) -> ReplyT:
        reply = accepted(self.submit(command)).reply
        assert isinstance(reply, kind), reply
        return reply


def accepted(decision: Decision) -> Decision:
    """Return the decision, or raise its refusal."""
    if decision.refused is not None:
        raise decision.refused
    return decision
