"""The core on a ``MemoryTable``: an engine without a disk, for tests of the rules.

It handles a decision like the store: it puts the records into a frame, applies them, and appends
messages that became visible to their queues. It keeps all frames, so a test can apply them to a
new core and compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from escrowmq.store.config import StoreConfig
from escrowmq.testing.calls import Calls
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.memory_log import MemoryFrame, MemoryLog
from escrowmq.testing.memory_table import MemoryTable
from escrowmq.transaction import records as kinds
from escrowmq.transaction.commands import Command, Decision
from escrowmq.transaction.core import CARRIED_MAX, Transactions
from escrowmq.transaction.decisions.answers import stored_at
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NOWHERE, NewRecord, QuietRecord, Record, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.model.message import SentMessage


class MemoryEngine(Calls):
    """A core, its frames and its queues."""

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        policy: CheckPolicy | None = None,
        copy_after_ms: int | None = None,
        moved_max: int = CARRIED_MAX,
    ) -> None:
        super().__init__(clock, policy)
        self.log = MemoryLog()
        self.table = MemoryTable(self.log)
        copy_ms = StoreConfig().copy_after_ms if copy_after_ms is None else copy_after_ms
        #: Store time never goes back, even if the clock does.
        self.last_at_ms = 0
        self._core = Transactions(
            self.table, self.policy, copy_after_ms=copy_ms, carried_max=moved_max
        )
        #: Visible messages in order, by queue number.
        self.queues: dict[int, list[SentMessage]] = {}

    @property
    def core(self) -> Transactions:
        """The transactions, for inspection."""
        return self._core

    @property
    def frames(self) -> list[MemoryFrame]:
        """All frames that were written."""
        return self.log.frames

    def submit(self, command: Command) -> Decision:
        """Decide and apply a command. A refusal is in the decision."""
        at_ms = max(self.clock.now_ms(), self.last_at_ms)
        decision = self.core.decide(command, at_ms)
        for before in self.core.to_carry(decision, at_ms):
            self._record(before, at_ms)
        return self._record(decision, at_ms) if decision.records else decision

    def due(self, until_ms: int, limit: int) -> list[int]:
        """Return rows that are due by then: undecided heads and scheduled messages."""
        return self.table.due(until_ms, limit)

    def pull(self, topic: str, queue_id: int = 0) -> list[SentMessage]:
        """Return all visible messages of this queue."""
        number = self.core.names.number_of(topic, queue_id)
        return [] if number is None else self.queues.get(number, [])

    def apply(self, frames: Iterable[MemoryFrame]) -> None:
        """Apply frames to the core only, as recovery does."""
        for frame in frames:
            for record in frame.records:
                self.core.apply(record, frame.where)

    def restart(self) -> MemoryEngine:
        """Return a new engine, rebuilt only from the frames."""
        engine = MemoryEngine(
            clock=self.clock,
            policy=self.policy,
            copy_after_ms=self.core.copy_after_ms,
        )
        for frame in self.frames:
            engine.log.take(frame)
            engine._apply(frame)
        engine.log.end = self.log.end
        return engine

    def _apply(self, frame: MemoryFrame) -> None:
        for record in frame.records:
            self.core.apply(record, frame.where)
            self._show(record, frame)
        self.last_at_ms = frame.where.at_ms

    def _record(self, decision: Decision, at_ms: int) -> Decision:
        messages = decision.messages or tuple(
            self.log.message_at(half.location) for half in decision.copies
        )
        frame = self.log.append(decision.records, messages, at_ms)
        self._apply(frame)
        new = frame.records[-1]
        reply = stored_at(new, frame.log_offsets) if isinstance(new, NewRecord) else decision.reply
        return msgspec.structs.replace(decision, records=tuple(frame.records), reply=reply)

    def _show(self, record: Record, frame: MemoryFrame) -> None:
        match record:
            case kinds.Stored():
                for queue, message in zip(record.placed.queues, frame.messages, strict=True):
                    self.queues.setdefault(queue, []).append(message)
            case kinds.Released():
                pairs = zip(record.rows, record.queue_offsets, strict=True)
                self._show_rows(row for row, place in pairs if place != NOWHERE)
            case kinds.DecidedMany():
                self._show_rows(unpack_rows(record.committed))
            case kinds.Decided() | kinds.BatchDecided():
                waits = {row for row, _ in record.waiting}
                ranges = record.ranges if record.given else []
                rows = [row for first, count in ranges for row in range(first, first + count)]
                self._show_rows(row for row in rows if row not in waits)
            case _ if isinstance(record, kinds.MessageRecord | QuietRecord):
                pass
            case _:
                assert_never(record)

    def _show_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            half = self.table.rows[row]
            self.queues.setdefault(half.queue, []).append(self.log.message_at(half.location))
