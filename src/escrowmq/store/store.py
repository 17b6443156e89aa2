"""The store: takes commands, appends frames to the log, and reads everything back.

One thread owns it. ``execute`` decides a command and applies it in memory at once. Several commands
are gathered, then written and flushed together (``write``, ``flush``). Only then do queue ends move
(``publish``) and replies leave. If a write or a flush fails, the store is finished: it refuses
everything, and a restart recovers from the log.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.message.limits import validate_queue
from escrowmq.store.checkpoint.checkpoint_job import CheckpointJob
from escrowmq.store.checkpoint.parkings import Parkings
from escrowmq.store.disk.space import Space
from escrowmq.store.index.key_index import KeyIndex
from escrowmq.store.log.encoding import MessageEncoder, copied
from escrowmq.store.log.frames import HEAD_BYTES, close_frame, whole_frame
from escrowmq.store.log.reading import LogReading
from escrowmq.store.queue.consume_queue import ConsumeQueue, QueueEntry
from escrowmq.store.queue.dispatch import Dispatcher
from escrowmq.store.queue.lost import LostRanges
from escrowmq.store.queue.queue_files import OpenFiles
from escrowmq.store.queue.shown import Shown
from escrowmq.store.table.row_queries import LogReaders
from escrowmq.store.table.state_table import StateTable
from escrowmq.transaction import records as kinds
from escrowmq.transaction.commands import Command, Decision, Reply
from escrowmq.transaction.core import Transactions, Where
from escrowmq.transaction.decisions.answers import stored_at
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import (
    NOWHERE,
    Carried,
    NamedQueue,
    NewRecord,
    Prepared,
    Stored,
    readers_by_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.config import StoreConfig
    from escrowmq.store.disk.disk import Bytes, Disk
    from escrowmq.store.log.commit_log import CommitLog
    from escrowmq.store.recovery.format import Format
    from escrowmq.store.states.follower import Follower
    from escrowmq.transaction.policy import CheckPolicy
    from escrowmq.transaction.records import Record


UNFILED_OPS_MAX = 1024 * 1024
"""Decisions in memory at which a checkpoint is due; bulk decisions hardly grow the log."""


#: Records for ``encode_one``; a tuple, because ``isinstance`` with ``Prepared | Stored`` is slow.
_LONE = (Prepared, Stored)
_CORE_ONLY = kinds.NameRecord | kinds.CheckRecord | kinds.HistoryRecord | kinds.PopRecord | Recalled


class Store:
    """An open store. ``open_store`` in recovery.py makes one."""

    def __init__(  # noqa: PLR0917 - called in one place only
        self,
        disk: Disk,
        log: CommitLog,
        form: Format,
        config: StoreConfig,
        policy: CheckPolicy,
        store_host: bytes,
    ) -> None:
        self.disk = disk
        self.log = log
        self.config = config
        self._encoder = MessageEncoder(store_host)
        self.seed = form.seed
        self.lost = LostRanges()
        self.reading = LogReading(log, form.seed, self.lost)
        self.keys = KeyIndex(disk)
        self.table = StateTable(
            disk,
            form.chunk_rows,
            LogReaders(
                identity=self.reading.identity,
                holds=self.reading.holds,
                decision=self.reading.decision,
            ),
        )
        self.core = Transactions(
            self.table,
            policy,
            copy_after_ms=config.copy_after_ms,
            store_id=f"{form.seed:08x}",
        )
        self.dispatcher = Dispatcher(self.table, self.keys, self.lost)
        self.open_files = OpenFiles(disk)
        self.space = Space(disk, config.free_bytes_min)
        #: Existing queues, by queue number.
        self.queues: dict[int, ConsumeQueue] = {}
        #: Durable topics, groups and settings; the core is ahead of it.
        self.catalog = Catalog()
        self._shown = Shown(self.catalog, self.queues, self.open_files)
        #: Files of deleted queues.
        self.garbage = self._shown.garbage
        #: The log offset up to which meta.db has been written.
        self.meta_at = -1
        #: Messages of deleted topics that were dropped when their time came, since the start.
        self.dropped = 0
        #: False during recovery, when there may be files that no checkpoint names.
        self.is_recovered = False
        self._appliers = readers_by_type(self._applier)
        self._is_fsync = config.durability == "fsync"
        self.parkings = Parkings()
        #: The durable end of the log, according to ``store.durability``: all below may be shown.
        self.durable_end = 0
        #: The same for half offsets.
        self.durable_rows = 0
        #: The last store time. It never goes back, even if the clock does.
        self.last_at_ms = 0
        self.checkpointed = 0
        self.previous: Checkpoint | None = None
        self.failure: BaseException | None = None
        #: The highest ``copy_after_ms`` so far: older messages are copied when they become visible.
        self.copy_after_max_ms = config.copy_after_ms
        #: The log below this may be deleted once a checkpoint records it.
        self.log_start = 0
        #: Where the log ended when recovery was done.
        self.recovered_at = 0
        #: Leads the state store after the log; None if the state table is the state store.
        self.follower: Follower | None = None

    # Commands.

    def execute(self, command: Command, now_ms: int) -> Decision:
        """Decide and apply a command. Its reply must not leave before the next flush."""
        if self.failure is not None:
            raise self.finished()
        at_ms = max(now_ms, self.last_at_ms)
        decision = self.core.decide(command, at_ms)
        if decision.carries or decision.carries_alone:
            for before in self.core.to_carry(decision, at_ms):
                self._record(before, at_ms)
        if not decision.records:
            return decision
        try:
            return self._record(decision, at_ms)
        except RequestRefused as refused:
            return Decision(refused=refused)

    def _record(self, decision: Decision, at_ms: int) -> Decision:
        log = self.log
        frame_offset = log.end
        messages_at = frame_offset + HEAD_BYTES
        records, messages = decision.records, decision.messages
        place = (frame_offset, at_ms, log.flushed)
        frame: Bytes
        if not messages and decision.columns is None:
            copies: list[bytes] = []
            if decision.copies:
                copies = list(map(self.reading.record_of, decision.copies))
                carried = records[-1]
                assert isinstance(carried, Carried)
                records = (*records[:-1], copied(carried, copies))
            frame = whole_frame(copies, sum(map(len, copies)), records, place, self.seed)
        elif len(messages) == 1 and isinstance(records[0], _LONE):
            # The most common frames: one message whose names are all known.
            at = (messages_at, at_ms)
            parts, placed = self._encoder.encode_one(messages[0], records[0], at)
            records = (placed,)
            frame = whole_frame(parts, placed.placed.sizes[0], records, place, self.seed)
            stored = stored_at(placed, [messages_at])
            decision = Decision(records=records, reply=stored, messages=messages)
        else:
            frame, record, reply = self._encode(decision, (messages_at, at_ms))
            records = (*records[:-1], record)
            close_frame(frame, records, place, self.seed)
            decision = Decision(records=records, reply=reply, messages=messages)
        log.append(frame, at_ms)
        self.last_at_ms = at_ms
        self.apply(records, Where(frame_offset, messages_at, at_ms))
        return decision

    def _encode(
        self, decision: Decision, at: tuple[int, int]
    ) -> tuple[bytearray, NewRecord, Reply]:
        """Return a frame with new messages, their record and the reply."""
        *names, new = decision.records
        for named in names:
            if isinstance(named, NamedQueue):
                validate_queue(named.topic, named.queue_id)
        assert isinstance(new, NewRecord)
        messages = decision.messages if decision.columns is None else decision.columns
        frame, record, log_offsets = self._encoder.encode(messages, new, at)
        if decision.columns is not None:
            assert isinstance(record, Prepared)
            self.reading.remember(record.first, record.transaction_id, record.number)
        return frame, record, stored_at(record, log_offsets)

    def apply(self, records: tuple[Record, ...] | list[Record], where: Where) -> None:
        """Apply a frame's records, live or during recovery."""
        for record in records:
            self._appliers[type(record)](record, where)

    def _applier(self, record: Record) -> Callable[[Any, Where], None]:  # noqa: PLR0911 - one case per record
        match record:
            case _ if isinstance(record, kinds.MessageRecord | kinds.Op):
                return self._apply_shown
            case kinds.Released():
                return self._release
            case kinds.NamedQueue():
                return self._name_queue
            case kinds.Parked():
                return self._park
            case kinds.Lost():
                return self._lose
            case _ if isinstance(record, kinds.CatalogRecord):
                return self._apply_catalog
            case _ if isinstance(record, _CORE_ONLY):
                return self.core.apply
            case _:
                assert_never(record)

    def _apply_shown(self, record: Record, where: Where) -> None:
        kind = type(record)
        self.core.appliers[kind](record, where)
        self.dispatcher.readers[kind](record, where)

    def _release(self, record: kinds.Released, where: Where) -> None:
        self._apply_shown(record, where)
        self.dropped += record.queue_offsets.count(NOWHERE)

    def _park(self, record: kinds.Parked, where: Where) -> None:
        self.core.apply(record, where)
        ranges = self.core.ranges_of(record.head)
        self.parkings.add(where.frame, sum(count for _, count in ranges))

    def _apply_catalog(self, record: kinds.CatalogRecord, where: Where) -> None:
        self.core.apply(record, where)
        self._shown.later(record, where)

    def _lose(self, record: kinds.Lost, where: Where) -> None:
        self.lost.add(where.frame, where.frame + record.length)
        self.table.skip_to(record.rows_end, where)
        for queue, end in record.queue_ends:
            known = self.core.queue_ends.get(queue)
            if known is not None:
                self.dispatcher.skip(queue, known, end, where)
        self.core.apply(record, where)

    def _name_queue(self, record: kinds.NamedQueue, where: Where) -> None:
        self.core.apply(record, where)
        # In a replay, the checkpoint may already have this queue deleted.
        if record.id in self.core.names.queues:
            self._shown.make(self.disk, record, may_have_files=not self.is_recovered)
        self._shown.later(record, where)

    def follow_with(self, follower: Follower) -> None:
        """Let a state store follow from now on."""
        self.follower = follower
        follower.notes.listen(self._appliers)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if nothing was ever sent to it."""
        return self._shown.queue(topic, queue_id)

    # Durability.

    def write(self) -> None:
        """Hand the gathered frames to the operating system."""
        self._or_fail(self.log.write)

    def flush(self) -> None:
        """Flush everything written to the disk; may run in another thread."""
        self._or_fail(self.log.flush)

    def _or_fail(self, work: Callable[[], None]) -> None:
        """Write or flush; if that fails, the store refuses everything from then on."""
        self._refuse_if_failed()
        try:
            work()
        except BaseException as error:
            self.failure = error
            raise

    def publish(self) -> set[int]:
        """Move queue ends over what is durable now, one slice; return the queues that grew."""
        self._refuse_if_failed()
        self.durable_end = self.log.flushed if self._is_fsync else self.log.written
        grown: set[int] = set()
        if self.durable_end < self.log.end:
            # A batch is not durable yet, and the waiting entries may be part of it.
            return grown
        self.durable_rows = self.table.end
        self._shown.show()
        queues = self.queues
        for number, first, entries in self.dispatcher.take():
            queue = queues.get(number)
            if queue is None:
                # Its topic was deleted meanwhile.
                continue
            if isinstance(entries, QueueEntry):
                queue.append(first, entries)
            else:
                queue.extend(first, entries)
            grown.add(number)
        return grown

    def sync(self) -> None:
        """Write, flush and publish everything, for a caller that has the store to itself."""
        self.write()
        if self._is_fsync:
            self.flush()
        self.publish()
        while not self.dispatcher.is_idle:
            self.publish()
        if self.follower is not None and not self.follower.is_led and self.is_all_durable:
            self.follower.follow_all()

    @property
    def is_all_durable(self) -> bool:
        """Whether memory holds exactly what is durable."""
        return self.failure is None and self.durable_end == self.log.end

    def _refuse_if_failed(self) -> None:
        # A second flush would succeed although the kernel dropped what the first one lost.
        if self.failure is not None:
            raise self.finished()

    def finished(self) -> Unavailable:
        """Return the error for every call after a failed write."""
        return Unavailable(
            "store_failed",
            "a write failed; restart the broker, it recovers from the log",
            cause=repr(self.failure),
        )

    # Checkpoints.

    @property
    def checkpoint_due(self) -> bool:
        """Whether a restart would replay too much, or memory holds too much."""
        grown = self.log.written - self.checkpointed
        return (
            grown >= self.config.checkpoint_bytes
            or self.keys.snapshot_due()
            or len(self.table.ops) >= UNFILED_OPS_MAX
        )

    def checkpoint(self) -> None:
        """Take a checkpoint now. All frames must be written, and all queue entries published."""
        job = self.begin_checkpoint()
        self._or_fail(job.write)
        self._or_fail(partial(self.end_checkpoint, job))

    def begin_checkpoint(self) -> CheckpointJob:
        """Take a snapshot of what a checkpoint must hold."""
        self._refuse_if_failed()
        assert self.log.end == self.log.written, "a checkpoint holds only what is written"
        assert self.dispatcher.is_idle, "a checkpoint holds only what is visible"
        return CheckpointJob(self)

    def end_checkpoint(self, job: CheckpointJob) -> None:
        """Make the checkpoint valid, and drop what it made unnecessary."""
        deque(job.install(), maxlen=0)
        job.seal()
        job.save()
        job.finish()

    def close(self) -> None:
        """Take a checkpoint unless the store has failed or has no room, and close all files."""
        if self.failure is None:
            self.sync()
            if self.space.look_for_files():
                self.checkpoint()
            if self.follower is not None:
                self.follower.close()
                self.follower = None
        self.give_back()

    def give_back(self) -> None:
        """Close all files without a flush or a checkpoint."""
        if self.follower is not None:
            self.follower.give_back()
        self.open_files.close()
        self.keys.close()
        self.log.close()
