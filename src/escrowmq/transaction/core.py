"""The transaction state machine.

``decide`` reads and never writes; ``apply`` writes and never decides. Recovery is ``apply`` over
the log, so a restarted broker cannot disagree with the one that crashed. Nothing here opens a file,
reads a clock, awaits or logs. ``decisions/by_command.py`` names the function for each command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import msgspec
import numpy as np

from escrowmq.model.clock import Anchor
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.model.lineage import Epoch, new_lineage, repaired
from escrowmq.transaction import records
from escrowmq.transaction.commands import Carry, CarryAlone
from escrowmq.transaction.decisions.by_command import DECIDERS
from escrowmq.transaction.memory.batches import DecidedBatches
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.memory.names import Names
from escrowmq.transaction.memory.parts import PartsByHead, TransactionParts
from escrowmq.transaction.memory.pops import PopPositions
from escrowmq.transaction.memory.uses import NameUses
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import (
    NEVER,
    NOWHERE,
    PLAIN,
    CatalogRecord,
    PopRecord,
    Record,
    readers_by_type,
)
from escrowmq.transaction.states import STATES, State
from escrowmq.transaction.table import FIRST, Half, HalfTable, NewRows, first_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escrowmq.transaction.commands import Command, Decision
    from escrowmq.transaction.policy import CheckPolicy

CARRIED_MAX = 100_000
"""Requests whose last ``Carried`` is remembered; forgetting one costs one extra copy at most."""


class Where(msgspec.Struct, frozen=True, gc=False):
    """The place and time at which a record's frame was written."""

    frame: int
    #: The log offset of the first message that the record brings.
    messages: int
    at_ms: int


class Transactions:
    """Every transaction the broker knows, and the next offset of every queue."""

    def __init__(
        self,
        table: HalfTable,
        policy: CheckPolicy,
        *,
        copy_after_ms: int,
        carried_max: int = CARRIED_MAX,
        store_id: str = "",
        limits: LimitsConfig | None = None,
    ) -> None:
        self.table = table
        self.policy = policy
        self.copy_after_ms = copy_after_ms
        self.limits = limits or LimitsConfig()
        self.names = Names()
        self.catalog = Catalog()
        self.uses = NameUses()
        self.pops = PopPositions()
        self.batches = DecidedBatches()
        self.lineage = new_lineage(store_id)
        #: By queue number: the next queue offset to give, in queues that were not deleted.
        self.queue_ends: dict[int, int] = {}
        #: By head: undecided transactions of several requests.
        self.parts = PartsByHead()
        #: First row of a later request -> head of its transaction.
        self.heads: dict[int, int] = {}
        #: By half offset: delivery delays of undecided half messages.
        self.delays: dict[int, int] = {}
        #: By head: when an undecided transaction was resumed; its age counts from there.
        self.resumed_at_ms: dict[int, int] = {}
        #: First row of a request -> when it was carried forward last.
        self.carried_at_ms: dict[int, int] = {}
        #: The last change of store time, and the last store time tied to the boot clock.
        self.time_moved: records.TimeMoved | None = None
        self.anchor: Anchor | None = None
        self._carried_max = carried_max
        #: By type of record, the function that applies it.
        self.appliers = readers_by_type(self._applier)

    def decide(self, command: Command, now_ms: int) -> Decision:
        """Decide a command at this time. Changes nothing."""
        return DECIDERS[type(command)](self, command, now_ms)

    def to_carry(self, decision: Decision, now_ms: int) -> Iterator[Decision]:
        """Yield what to write before this decision; the caller applies each before the next."""
        for first in decision.carries:
            yield self.decide(Carry(first=first), now_ms)
        if decision.carries_alone:
            yield self.decide(CarryAlone(halves=decision.carries_alone), now_ms)

    def apply(self, record: Record, where: Where) -> None:
        """Apply a record. Applying it again changes nothing."""
        self.appliers[type(record)](record, where)

    def _applier(self, record: Record) -> Callable[[Any, Where], None]:  # noqa: C901, PLR0911, PLR0912 - one case per record
        match record:
            case records.NamedQueue():
                return self._apply_named_queue
            case records.NamedOrigin():
                return lambda record, where: self.names.origins.apply(
                    record, where.at_ms, where.frame
                )
            case records.OriginsExpired():
                return lambda record, _: self.names.origins.expire(record.numbers)
            case records.QueriesExpired():
                return lambda record, _: self.batches.expire(record.queries)
            case records.NamesUsed():
                return lambda record, where: self.uses.apply(record, where.at_ms, self.catalog)
            case records.Stored():
                return self._apply_stored
            case records.Scheduled():
                return self._apply_scheduled
            case records.Prepared():
                return self._apply_prepared
            case records.Carried():
                return self._apply_carried
            case records.Decided():
                return self._apply_decided
            case records.BatchDecided():
                return self._apply_batch_decided
            case records.DecidedMany():
                return self._apply_decided_many
            case records.Asked():
                return self._apply_asked
            case records.Answered():
                # An UNKNOWN is only kept for the transaction's life line.
                return lambda *_: None
            case records.Parked():
                return self._apply_parked
            case records.Resumed():
                return self._apply_resumed
            case records.Released():
                return self._apply_released
            case Recalled():
                return self._apply_recalled
            case records.Lost():
                return self._apply_lost
            case records.Began():
                return self._apply_began
            case records.TimeMoved():
                return self._apply_time_moved
            case records.TopicRemoved():
                return self._apply_topic_removed
            case _ if isinstance(record, PopRecord):
                return lambda record, _: self.pops.apply(record, self.names.queues)
            case _ if isinstance(record, CatalogRecord):
                return self._apply_cataloged
            case _:
                assert_never(record)

    def half(self, half_offset: int) -> Half | None:
        """The half message; None if there is none, or if the row is an ordinary message."""
        half = self.table.get(half_offset)
        return None if half is None or half.origin == PLAIN else half

    def row(self, half_offset: int) -> Half:
        """A row that must exist."""
        half = self.table.get(half_offset)
        assert half is not None
        return half

    def find(self, transaction_id: str) -> Half | None:
        """The first row of the newest request with this id; None if it is empty or unknown."""
        found = self.table.find(transaction_id) if transaction_id else None
        return None if found is None else self.row(found)

    def head_row(self, half: Half) -> Half:
        """The first half message of the transaction that ``half`` belongs to."""
        head = self.head_of(half.first)
        return half if head == half.half_offset else self.row(head)

    def head_of(self, first: int) -> int:
        """The head of the transaction whose request starts at this row."""
        return self.heads.get(first, first)

    def ranges_of(self, head: int) -> list[tuple[int, int]]:
        """Rows ``(first, count)`` of the undecided transaction that starts here.

        Empty while recovery replays a log that no longer has them: a later record restores them.
        """
        parts = self.parts.get(head)
        if parts is not None:
            return parts.ranges
        half = self.table.get(head)
        if half is None:
            return []
        assert half.part & FIRST, "a head is the first row of its request"
        return [(head, half.part & ~FIRST)]

    def _apply_named_queue(self, record: records.NamedQueue, _where: Where) -> None:
        self.names.apply(record)
        if record.id in self.names.queues:
            self.queue_ends.setdefault(record.id, 0)
            self.catalog.skip_incarnation(record.incarnation)

    def _apply_stored(self, record: records.Stored, _where: Where) -> None:
        ends = self.queue_ends
        for queue, offset in zip(record.placed.queues, record.queue_offsets, strict=True):
            if queue in ends:
                ends[queue] = offset + 1

    def _apply_scheduled(self, record: records.Scheduled, where: Where) -> None:
        self.table.insert(
            NewRows(
                first=record.first,
                origin=PLAIN,
                state=State.COMMITTED,
                where=where,
                next_at_ms=record.deliver_at_ms,
                transaction_id="",
                placed=record.placed,
            )
        )

    def _apply_prepared(self, record: records.Prepared, where: Where) -> None:
        # One check per transaction: only its head is ever due.
        next_at_ms = [record.next_check_at_ms]
        if record.head != record.first:
            next_at_ms = []
            self._join(record, len(record.placed.sizes))
        self.table.insert(
            NewRows(
                first=record.first,
                transaction_id=record.transaction_id,
                origin=record.origin,
                placed=record.placed,
                next_at_ms=next_at_ms,
                where=where,
                state=State.PREPARED,
            )
        )
        self.names.origins.use(record.origin, where.at_ms, where.frame)
        if record.deliver_after_ms:
            for row, delay_ms in enumerate(record.deliver_after_ms, record.first):
                if delay_ms:
                    self.delays[row] = delay_ms

    def _join(self, record: records.Prepared, count: int) -> None:
        parts = self.parts.to_grow(record.head)
        if parts is None:
            ranges = self.ranges_of(record.head)
            parts = TransactionParts(
                ranges=ranges,
                messages=sum(size for _, size in ranges),
                bytes=sum(self.table.sizes(first, size) for first, size in ranges),
            )
            self.parts.add(record.head, parts)
        if record.number == len(parts.ranges):
            parts.ranges.append((record.first, count))
            parts.messages += count
            parts.bytes += sum(record.placed.sizes)
        self.heads[record.first] = record.head

    def _apply_decided(self, record: records.Decided, where: Where) -> None:
        self._set_decided(record, STATES[record.state], where.frame)
        self._forget_transaction(record.head)

    def _apply_batch_decided(self, record: records.BatchDecided, where: Where) -> None:
        self._set_decided(record, State.COMMITTED, where.frame)
        for head in record.heads:
            self._forget_transaction(head)
        self.batches.apply(record, where.frame, where.at_ms)

    def _apply_decided_many(self, record: records.DecidedMany, where: Where) -> None:
        remembered = (self.parts, self.heads, self.delays, self.resumed_at_ms, self.carried_at_ms)
        for packed, state in (
            (record.committed, State.COMMITTED),
            (record.rolled_back, State.ROLLED_BACK),
        ):
            rows = np.frombuffer(packed, dtype=np.int64)
            self.table.decide_many(rows, state, where.frame)
            for known in remembered:
                if known:
                    for row in known.keys() & set(rows.tolist()):
                        del known[row]
        self._give(record.given)

    def _set_decided(
        self, record: records.Decided | records.BatchDecided, state: State, op_offset: int
    ) -> None:
        for first, count in record.ranges:
            self.table.decide(first, count, state, op_offset)
            if self.heads:
                self.heads.pop(first, None)
            if self.carried_at_ms and not record.waiting:
                self.carried_at_ms.pop(first, None)
            if self.delays:
                for row in range(first, first + count):
                    self.delays.pop(row, None)
        for row, at_ms in record.waiting:
            self.table.schedule(row, at_ms)
        self._give(record.given)

    def _give(self, given: list[records.Span]) -> None:
        for span in given:
            # Recovery may replay the log on a later state, in which the queue is deleted.
            if span.queue in self.queue_ends:
                self.queue_ends[span.queue] = span.first + span.count

    def _forget_transaction(self, head: int) -> None:
        if self.parts:
            self.parts.pop(head, None)
        if self.resumed_at_ms:
            self.resumed_at_ms.pop(head, None)

    def _apply_asked(self, record: records.Asked, _where: Where) -> None:
        self.table.count_check(record.head, record.checks_sent, record.next_check_at_ms)

    def _apply_parked(self, record: records.Parked, _where: Where) -> None:
        for first, count in self.ranges_of(record.head):
            self.table.mark(first, count, State.PARKED)
        self.table.schedule(record.head, NEVER)
        self.resumed_at_ms.pop(record.head, None)

    def _apply_resumed(self, record: records.Resumed, where: Where) -> None:
        for first, count in self.ranges_of(record.head):
            self.table.mark(first, count, State.PREPARED)
        self.table.count_check(record.head, 0, record.next_check_at_ms)
        self.resumed_at_ms[record.head] = where.at_ms

    def _apply_released(self, record: records.Released, _where: Where) -> None:
        self.table.release(np.array(record.rows, dtype=np.int64))
        for queue, offset in zip(record.queues, record.queue_offsets, strict=True):
            if offset != NOWHERE and queue in self.queue_ends:
                self.queue_ends[queue] = offset + 1

    def _apply_recalled(self, record: Recalled, where: Where) -> None:
        row = np.array([record.row], dtype=np.int64)
        self.table.decide_many(row, State.ROLLED_BACK, where.frame)

    def _apply_carried(self, record: records.Carried, where: Where) -> None:
        self.table.restore(record, where.messages)
        self.names.origins.carry(record.rows[0].origin, where.frame)
        for row in record.rows:
            if row.deliver_after_ms:
                self.delays[row.half_offset] = row.deliver_after_ms
        if record.since_ms and not record.rows[0].part & FIRST:
            # The part with the first row comes last; its ``since_ms`` is the time of the first
            # part.
            return
        first = first_row(record.rows[0].half_offset, record.rows[0].part)
        # Insert it anew, so that the oldest entry is the first to be forgotten.
        self.carried_at_ms.pop(first, None)
        if len(self.carried_at_ms) >= self._carried_max:
            del self.carried_at_ms[next(iter(self.carried_at_ms))]
        self.carried_at_ms[first] = record.since_ms or where.at_ms

    def _apply_lost(self, record: records.Lost, where: Where) -> None:
        for queue, end in record.queue_ends:
            if queue in self.queue_ends:
                self.queue_ends[queue] = end
        # Decisions may be lost with the range, so the history from here on is another one.
        self.lineage = self.lineage.with_epoch(
            repaired(where.frame + record.length, self.table.end)
        )

    def _apply_began(self, record: records.Began, where: Where) -> None:
        epoch = Epoch(record.epoch, where.frame, self.table.end, where.at_ms)
        self.lineage = self.lineage.with_epoch(epoch)
        self.anchor = Anchor(where.at_ms, record.boot_ms, record.boot_id)

    def _apply_time_moved(self, record: records.TimeMoved, _where: Where) -> None:
        self.time_moved = record
        if record.why not in (records.BEHIND, records.AGREES):
            self.anchor = Anchor(record.to_ms, record.boot_ms, record.boot_id)

    def _apply_cataloged(self, record: CatalogRecord, where: Where) -> None:
        self.catalog.apply(record, where.frame)
        self.uses.apply(record, where.at_ms, self.catalog)
        if isinstance(record, records.GroupRemoved):
            self.pops.forget_group(record.name)

    def _apply_topic_removed(self, record: records.TopicRemoved, where: Where) -> None:
        self._apply_cataloged(record, where)
        self.pops.forget_queues(record.queues)
        held = set(record.held)
        for queue in record.queues:
            self.names.remove(queue, is_held=queue in held)
            self.queue_ends.pop(queue, None)
