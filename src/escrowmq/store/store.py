"""The store: takes commands, appends frames to the log, and reads everything back.

One thread owns it. ``execute`` decides a command and applies it in memory at once. Several commands
are gathered, then written and flushed together (``write``, ``flush``). Only then do queue ends move
(``publish``) and replies leave. If a write or a flush fails, the store is finished: it refuses
everything, and a restart recovers from the log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.limits import validate_queue
from escrowmq.protocol.stored_message import SYS_PREPARED
from escrowmq.store.checkpoint_job import CheckpointJob
from escrowmq.store.consume_queue import ConsumeQueue, Entry
from escrowmq.store.dispatch import Dispatcher
from escrowmq.store.encoding import MessageEncoder, note_copied, note_transaction
from escrowmq.store.frames import HEAD_BYTES, close_frame, whole_frame
from escrowmq.store.key_index import KeyIndex
from escrowmq.store.log_reading import LogReading
from escrowmq.store.lost import LostRanges
from escrowmq.store.parkings import Parkings
from escrowmq.store.queue_files import OpenFiles
from escrowmq.store.shown import Shown
from escrowmq.store.space import Space
from escrowmq.store.state_table import Reading, StateTable
from escrowmq.transaction.catalog import Catalog
from escrowmq.transaction.commands import (
    Appended,
    Carry,
    CarryAlone,
    Command,
    Decision,
    Held,
)
from escrowmq.transaction.core import Transactions, Where
from escrowmq.transaction.records import (
    CATALOG_RECORDS,
    NOWHERE,
    Lost,
    Moved,
    NamedQueue,
    Parked,
    Prepared,
    Released,
    Scheduled,
    Stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.checkpoint import Checkpoint
    from escrowmq.store.commit_log import CommitLog
    from escrowmq.store.config import StoreConfig
    from escrowmq.store.disk import Bytes, Disk
    from escrowmq.store.format import Format
    from escrowmq.transaction.policy import CheckPolicy
    from escrowmq.transaction.records import Record
    from escrowmq.transaction.table import Half


UNFILED_OPS_MAX = 1024 * 1024
"""Decisions in memory at which a checkpoint is due; bulk decisions hardly grow the log."""


_SPECIAL = frozenset((Lost, NamedQueue, Parked, Released, *CATALOG_RECORDS))
"""Records that do more than change rows and queues."""


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
            Reading(
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
        self._is_fsync = config.durability == "fsync"
        self.parkings = Parkings()
        #: The durable end of the log, according to ``store.durability``: all below may be shown.
        self.settled = 0
        #: The same for half offsets.
        self.settled_rows = 0
        #: Store times never go back, even if the clock does.
        self.last_at_ms = 0
        self.checkpointed = 0
        self.previous: Checkpoint | None = None
        self.failure: BaseException | None = None
        #: The highest ``copy_after_ms`` so far: the longest time from a message to its queue entry.
        self.copy_after_max_ms = config.copy_after_ms
        #: The log below this may be deleted once a checkpoint records it.
        self.log_start = 0

    # Commands.

    def execute(self, command: Command, now_ms: int) -> Decision:
        """Decide and apply a command. Its reply must not leave before the next flush."""
        self._refuse_if_failed()
        at_ms = max(now_ms, self.last_at_ms)
        decision = self.core.decide(command, at_ms)
        for first in decision.carries:
            self._record(self.core.decide(Carry(first=first), at_ms), at_ms)
        if decision.carries_alone:
            alone = CarryAlone(halves=decision.carries_alone)
            self._record(self.core.decide(alone, at_ms), at_ms)
        if decision.records:
            try:
                self._record(decision, at_ms)
            except RequestRefused as refused:
                return Decision(refused=refused)
        return decision

    def _record(self, decision: Decision, at_ms: int) -> None:
        log = self.log
        frame_offset = log.end
        messages_at = frame_offset + HEAD_BYTES
        records = decision.records
        messages = decision.messages
        place = (frame_offset, at_ms, log.flushed)
        frame: Bytes
        if not messages and decision.columns is None:
            copies = self._copies(decision) if decision.copies else []
            frame = whole_frame(copies, sum(map(len, copies)), records, place, self.seed)
        elif len(messages) == 1 and type(records[0]) is Prepared:
            frame = self._frame_of_one(decision, records[0], place)
        else:
            for named in records[:-1]:
                if type(named) is NamedQueue:
                    validate_queue(named.topic, named.queue_id)
            frame = gathered = self._encode(decision, messages_at, at_ms)
            close_frame(gathered, records, place, self.seed)
        log.append(frame, at_ms)
        self.last_at_ms = at_ms
        self.apply(records, Where(frame_offset, messages_at, at_ms))

    def row(self, row: int) -> Half:
        """Return a row that is known to exist."""
        half = self.table.get(row)
        assert half is not None
        return half

    def apply(self, records: tuple[Record, ...] | list[Record], where: Where) -> None:
        """Apply a frame's records, live or during recovery."""
        for record in records:
            if type(record) in _SPECIAL:
                self._apply_special(record, where)
            else:
                self.core.apply(record, where)
                self.dispatcher.dispatch(record, where)

    def _apply_special(self, record: Record, where: Where) -> None:
        if isinstance(record, Lost):
            self._lose(record, where)
        self.core.apply(record, where)
        if isinstance(record, NamedQueue):
            self._name_queue(record)
            self._shown.later(record, where)
        elif isinstance(record, Parked):
            ranges = self.core.ranges_of(record.head)
            self.parkings.add(where.frame, sum(count for _, count in ranges))
        elif isinstance(record, Released | Lost):
            if isinstance(record, Released):
                self.dropped += record.queue_offsets.count(NOWHERE)
            self.dispatcher.dispatch(record, where)
        else:
            self._shown.later(record, where)

    def _lose(self, record: Lost, where: Where) -> None:
        self.lost.add(where.frame, where.frame + record.length)
        self.table.skip_to(record.rows_end, where)
        for queue, end in record.queue_ends:
            known = self.core.queue_ends.get(queue)
            if known is not None:
                self.dispatcher.skip(queue, known, end, where)

    def _name_queue(self, record: NamedQueue) -> None:
        # In a replay, the checkpoint may already have this queue deleted.
        if record.id in self.core.names.queues:
            self._shown.make(self.disk, record, may_have_files=not self.is_recovered)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if nothing was ever sent to it."""
        return self._shown.queue(topic, queue_id)

    def _frame_of_one(
        self, decision: Decision, record: Prepared, place: tuple[int, int, int]
    ) -> bytes:
        """Return the most common frame: one half message whose names are all known."""
        (message,), reply = decision.messages, decision.reply
        assert isinstance(reply, Held)
        placed = record.placed
        log_offset = place[0] + HEAD_BYTES
        parts = self._encoder.encode_one(
            message, record.first, (log_offset, place[1]), SYS_PREPARED, placed
        )
        reply.log_offsets = [log_offset]
        if record.transaction_id != message.unique_key:
            note_transaction(placed, record.transaction_id)
        return whole_frame(parts, placed.sizes[0], decision.records, place, self.seed)

    def _encode(self, decision: Decision, offset: int, at_ms: int) -> bytearray:
        record, reply = decision.records[-1], decision.reply
        assert isinstance(reply, Held | Appended)
        bits = 0
        queue_offsets: Iterable[int]
        if type(record) is Stored:
            queue_offsets = record.queue_offsets
        else:
            assert isinstance(record, Prepared | Scheduled)
            queue_offsets = range(record.first, record.first + len(decision.messages))
            bits = SYS_PREPARED if type(record) is Prepared else 0
        columns = decision.columns
        if columns is not None:
            assert isinstance(record, Prepared)
            frame, reply.log_offsets = self._encoder.encode_columns(
                columns, record.first, (offset, at_ms), bits, record.placed
            )
            self.reading.remember(record.first, record.transaction_id, record.number)
        else:
            frame, reply.log_offsets = self._encoder.encode(
                decision.messages, queue_offsets, (offset, at_ms), bits, record.placed
            )
        if type(record) is Prepared:
            note_transaction(record.placed, record.transaction_id)
        return frame

    def _copies(self, decision: Decision) -> list[bytes]:
        copies = list(map(self.reading.record_of, decision.copies))
        record = decision.records[-1]
        assert isinstance(record, Moved)
        note_copied(record.placed, copies)
        note_transaction(record.placed, record.rows[0].transaction_id)
        return copies

    # Durability.

    def write(self) -> None:
        """Hand the gathered frames to the operating system."""
        self._refuse_if_failed()
        try:
            self.log.write()
        except BaseException as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Flush everything written to the disk; may run in another thread."""
        self._refuse_if_failed()
        try:
            self.log.flush()
        except BaseException as error:
            self.failure = error
            raise

    def publish(self) -> set[int]:
        """Move queue ends over what is durable now, one slice; return the queues that grew."""
        self._refuse_if_failed()
        self.settled = self.log.flushed if self._is_fsync else self.log.written
        grown: set[int] = set()
        if self.settled < self.log.end:
            # A batch is not durable yet, and the waiting entries may be part of it.
            return grown
        self.settled_rows = self.table.end
        self._shown.show()
        queues = self.queues
        for number, first, entries in self.dispatcher.take():
            queue = queues.get(number)
            if queue is None:
                # Its topic was deleted meanwhile.
                continue
            if isinstance(entries, Entry):
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
        """Whether a restart would replay too much, or memory holds too much, and there is room."""
        grown = self.log.written - self.checkpointed
        is_due = (
            grown >= self.config.checkpoint_bytes
            or self.keys.snapshot_due()
            or len(self.table.ops) >= UNFILED_OPS_MAX
        )
        return is_due and self.space.allows_files()

    def checkpoint(self) -> None:
        """Take a checkpoint now. All frames must be written, and all queue entries published."""
        job = self.begin_checkpoint()
        try:
            job.write()
            self.end_checkpoint(job)
        except BaseException as error:
            self.failure = error
            raise

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
            if self.space.allows_files():
                self.checkpoint()
        self.give_back()

    def give_back(self) -> None:
        """Close all files as they are."""
        self.open_files.close()
        self.keys.close()
        self.log.close()
