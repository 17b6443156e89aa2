"""Opens a store: loads the newest checkpoint, then applies the rest of the log.

Recovery decides nothing. It cuts every projection to the checkpoint and replays the log after it.
If it replayed anything and the disk has room, it takes a checkpoint. A second recovery gives the
same state.
"""

from __future__ import annotations

import errno
import gc
import secrets
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from escrowmq.model.clock import time_at_start
from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.model.event_log import event_log
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.checkpoint.checkpoint_job import CheckpointJob
from escrowmq.store.config import COPY_AFTER_MAX_MS
from escrowmq.store.disk import reserve as reserves
from escrowmq.store.disk.disk import on_error
from escrowmq.store.disk.reserve import Reserve
from escrowmq.store.log.commit_log import BLOCK_BYTES, CommitLog, block_at, read_frames
from escrowmq.store.log.tail import cut_tail, judge, open_segments, refuse_gaps, rewrite_tail
from escrowmq.store.recovery import format as formats
from escrowmq.store.recovery.format import DIRECTORIES
from escrowmq.store.recovery.replay import Replayer, publish_all
from escrowmq.store.states.choosing import open_states
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Begin
from escrowmq.transaction.core import Where
from escrowmq.transaction.memory.origins import SavedOrigins
from escrowmq.transaction.memory.parts import PartsByHead
from escrowmq.transaction.memory.pops import PopPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escrowmq.model.clock import ClockReading
    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.config import StoreConfig
    from escrowmq.store.disk.disk import Disk
    from escrowmq.transaction.policy import CheckPolicy

T = TypeVar("T")

NO_HOST = bytes(8)
"""The broker's address for a store that gets no new messages: only new messages hold it."""

log = event_log(__name__)

FILES = (formats.PATH, checkpoints.PATH, checkpoints.PREVIOUS, reserves.PATH)
#: How many checkpoints' worth of log a replay keeps in memory, because writing files is slow.
SPILLED_CHECKPOINTS = 4
TEMPORARIES = (formats.TEMPORARY, checkpoints.TEMPORARY)


class RecoveryResult(msgspec.Struct, kw_only=True):
    """What recovery found, for the event log and for operators."""

    #: Where the replay began; it ended at ``Store.recovered_at``.
    replayed_from: int = 0
    frames: int = 0
    #: Bytes of a torn tail that were cut.
    cut_bytes: int = 0
    #: The last store time that the log had; 0 if the store is new.
    last_at_ms: int = 0
    #: Why everything was rebuilt from the start of the log, if it was.
    rebuilt_because: str = ""


def start_store(
    disk: Disk, config: StoreConfig, policy: CheckPolicy, store_host: bytes, reading: ClockReading
) -> tuple[Store, RecoveryResult]:
    """Open a store to serve it, and begin a new epoch.

    The epoch's first frame has the store time that belongs to the clock reading.
    """

    def start() -> tuple[Store, RecoveryResult]:
        store, found = _open(disk, config, policy, store_host)
        with on_error(store.give_back):
            formats.upgrade(disk)
            found.last_at_ms = store.last_at_ms
            epoch = secrets.token_hex(8)
            begin = Begin(epoch=epoch, boot_ms=reading.boot_ms, boot_id=reading.boot_id)
            store.execute(begin, time_at_start(store.last_at_ms, store.core.anchor, reading))
            store.sync()
            open_states(store)
        return store, found

    with refusing_full_disk():
        store, found = _with_reserve(disk, start)
    if store.space.wants_reserve:
        store.space.reserve.make()
    return store, found


def open_store(
    disk: Disk, config: StoreConfig, policy: CheckPolicy, store_host: bytes
) -> tuple[Store, RecoveryResult]:
    """Open a store, new or old, and bring it to the state that its log describes."""

    def open_it() -> tuple[Store, RecoveryResult]:
        store, found = _open(disk, config, policy, store_host)
        with on_error(store.give_back):
            open_states(store)
        return store, found

    with refusing_full_disk():
        return _with_reserve(disk, open_it)


def _with_reserve(disk: Disk, work: Callable[[], T]) -> T:
    """Do the work; if the disk is full, release the reserve and retry once."""
    try:
        return work()
    except OSError as error:
        reserve = Reserve(disk, 0)
        if error.errno != errno.ENOSPC or not reserve.held:
            raise
    # Recovery gives the same result from whatever the first attempt left.
    reserve.release()
    return work()


@contextmanager
def refusing_full_disk() -> Iterator[None]:
    """Raise StoreUnusable, which says what to do, if the disk has no room to recover."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The store cannot serve before it has rewritten what may not have reached the disk.
        raise StoreUnusable(
            "data_directory_full", "there is no room to recover; make some and start again"
        ) from error


def _open(
    disk: Disk, config: StoreConfig, policy: CheckPolicy, store_host: bytes
) -> tuple[Store, RecoveryResult]:
    disk.make_directory("")
    form = formats.read_or_make(disk, config.chunk_rows)
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    refuse_foreign(disk)
    found = RecoveryResult()
    checkpoint = newest_checkpoint(disk, found)
    commit = CommitLog(disk, config.segment_bytes_max)
    store = Store(disk, commit, form, config, policy, store_host)
    # Close the files on an error: one that is deleted takes room as long as it is open.
    with on_error(store.give_back):
        open_segments(disk, commit, checkpoint.log_start if checkpoint else 0)
        if checkpoint is not None:
            refuse_gaps(commit, checkpoint.log_start, checkpoint.log_end)
        store.table.files.refuse_foreign()
        is_taken = has_taken(store, checkpoint, found)
    if not is_taken:
        store.keys.close()
        store.open_files.close()
        store = Store(disk, commit, form, config, policy, store_host)
    with on_error(store.give_back):
        if not is_taken:
            start_over(store, checkpoint)
        replay(store, found, checkpoint)
    store.is_recovered = True
    store.dropped = 0
    facts = {"log_end": store.recovered_at, **msgspec.structs.asdict(found)}
    log.info("store_recovered", extra=facts)
    return store, found


def has_taken(store: Store, checkpoint: Checkpoint | None, found: RecoveryResult) -> bool:
    """Bring the store to the checkpoint; False if there is no usable one."""
    if checkpoint is None or found.rebuilt_because:
        return False
    try:
        take(store, checkpoint)
    except StoreCorrupt as error:
        # The log has everything, so a damaged projection is rebuilt.
        log.warning("projection_damaged", extra={"error": str(error)})
        found.rebuilt_because = str(error)
        return False
    return True


def refuse_foreign(disk: Disk) -> None:
    """Remove temporary files; raise if there is a file that is not the store's."""
    for name in disk.list(""):
        if name in TEMPORARIES:
            disk.remove(name)
        elif name not in (*FILES, *DIRECTORIES, *formats.OPTIONAL):
            raise StoreUnusable("store_foreign", "move this file away", path=name)


def newest_checkpoint(disk: Disk, found: RecoveryResult) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there is none."""
    newest = checkpoints.load(disk, checkpoints.PATH)
    if newest is not None:
        found.rebuilt_because = newest.rebuild
        return newest
    is_damaged = disk.exists(checkpoints.PATH)
    older = checkpoints.load(disk, checkpoints.PREVIOUS)
    if is_damaged:
        log.warning("checkpoint_damaged", extra={"has_previous": older is not None})
        found.rebuilt_because = "the newest checkpoint is damaged"
    return older


def take(store: Store, checkpoint: Checkpoint) -> None:
    """Load names, tables and queues from the checkpoint."""
    restore_core(store, checkpoint)
    files = store.table.files
    files.chunks = list(checkpoint.chunks)
    files.survivors_generation = checkpoint.survivors_generation
    files.survivors_count = checkpoint.survivors_count
    store.table.open(checkpoint.rows_start, checkpoint.rows_end, checkpoint.live)
    for named, (start, end) in zip(checkpoint.queues, checkpoint.queue_bounds, strict=True):
        store.queues[named.id].open(start, end)
        store.core.queue_ends[named.id] = end
    store.keys.open(checkpoint.key_runs)
    store.keys.forget_below(checkpoint.log_start)
    store.previous = checkpoint
    store.log.begin_at(checkpoint.log_end)


def restore_core(store: Store, checkpoint: Checkpoint) -> None:
    """Load the small facts, some of which may be older than the start of the log."""
    core = store.core
    # Missing numbers belong to deleted queues.
    for named in checkpoint.queues:
        core.names.queues_end = named.id
        store.apply([named], Where(0, 0, 0))
    core.names.queues_end = checkpoint.next_queue
    core.names.deleted = {named.id: named for named in checkpoint.deleted_queues}
    core.names.origins.load(checkpoint.origins, uses_of_origins(checkpoint))
    core.catalog.load(checkpoint.catalog)
    core.uses.load(checkpoint.uses)
    core.pops = PopPositions(checkpoint.pops)
    store.catalog.load(checkpoint.catalog)
    store.garbage.update(dict.fromkeys(checkpoint.garbage))
    store.meta_at = checkpoint.meta_at
    core.batches.load(checkpoint.batches, checkpoint.expired_queries, checkpoint.at_ms)
    core.parts = PartsByHead(checkpoint.parts)
    core.heads = {
        first: head for head, parts in core.parts.items() for first, _ in parts.ranges[1:]
    }
    core.delays = dict(checkpoint.delays)
    core.resumed_at_ms = dict(checkpoint.resumed_at_ms)
    core.time_moved, core.anchor = checkpoint.time_moved, checkpoint.anchor
    for epoch in checkpoint.epochs:
        core.lineage = core.lineage.with_epoch(epoch)
    store.parkings.load(checkpoint.parkings)
    store.last_at_ms = checkpoint.at_ms
    for start, end in checkpoint.lost:
        store.lost.add(start, end)
    store.log_start = checkpoint.log_start
    store.copy_after_max_ms = max(store.copy_after_max_ms, checkpoint.copy_after_ms)


def uses_of_origins(checkpoint: Checkpoint) -> SavedOrigins:
    """Return when origins were last used; older releases did not note it, so assume just now."""
    if checkpoint.origin_uses is not None:
        return checkpoint.origin_uses
    count = len(checkpoint.origins)
    return SavedOrigins(
        end=checkpoint.origins_end,
        used_at_ms=[checkpoint.at_ms] * count,
        frames=[checkpoint.log_end] * count,
        past=[],
    )


def start_over(store: Store, checkpoint: Checkpoint | None) -> None:
    """Discard all projections, so that the log is replayed from its start."""
    if checkpoint is not None:
        restore_core(store, checkpoint)
        for named, (start, _) in zip(checkpoint.queues, checkpoint.queue_bounds, strict=True):
            store.queues[named.id].begin_at(start)
            store.core.queue_ends[named.id] = start
    elif store.log.start > 0:
        raise StoreCorrupt(
            "checkpoint_missing",
            "the log no longer starts at 0, so it cannot be replayed without one; "
            "restore the file from a backup",
            path=checkpoints.PATH,
            log_start=store.log.start,
        )
    elif store.log.segments:
        # The setting under which the entries were made is unknown: assume the maximum.
        store.copy_after_max_ms = COPY_AFTER_MAX_MS
    store.table.lacks_rows = store.log.start > 0
    store.table.files.skip_generations()
    store.keys.open(())
    store.log.begin_at(store.log.start)


def replay(store: Store, found: RecoveryResult, checkpoint: Checkpoint | None) -> None:
    """Apply the log from where the projections end, then cut or rewrite its tail."""
    found.replayed_from = store.log.end
    replayer = Replayer(store)
    with no_collector():
        offset = replay_segments(store, replayer)
        replayer.flush()
    found.frames = replayer.frames
    flushed = max(replayer.flushed, checkpoint.log_end if checkpoint else 0)
    if checkpoint is not None:
        store.table.end_at_least(checkpoint.rows_end)
    set_durable_end(store, found, offset, flushed)
    is_behind = checkpoint is None or found.frames or found.rebuilt_because
    if not is_behind:
        store.checkpointed = offset
    elif store.space.look_for_files():
        store.checkpoint()


@contextmanager
def no_collector() -> Iterator[None]:
    """Disable Python's cycle collector: a replay makes millions of objects, and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def replay_segments(store: Store, replayer: Replayer) -> int:
    """Replay up to the first bad or missing frame; return its log offset."""
    offset = spilled = store.log.end
    size = min(BLOCK_BYTES, store.config.checkpoint_bytes)
    for segment in store.log.segments:
        while segment.start <= offset < segment.end:
            done = replayer.feed(block_at(segment, offset, segment.end, size), offset)
            if not done:
                return offset
            offset += done
            if offset - spilled >= SPILLED_CHECKPOINTS * store.config.checkpoint_bytes:
                replayer.flush()
                spill(store)
                spilled = offset
    return offset


def set_durable_end(store: Store, found: RecoveryResult, offset: int, flushed: int) -> None:
    """Cut a torn tail, rewrite what may never have reached the disk, and go on from there."""
    commit = store.log
    if commit.segments and offset < commit.segments[-1].end:
        judge(commit, store.seed, offset, flushed)
        found.cut_bytes = cut_tail(store.disk, commit, offset)
        log.warning("torn_tail_cut", extra={"log_offset": offset, "cut_bytes": found.cut_bytes})
    if flushed < offset:
        rewrite_tail(store.disk, commit, flushed, offset)
    store.recovered_at = offset
    commit.begin_at(offset)
    publish_all(store)
    store.publish()
    note_times(store)


def spill(store: Store) -> None:
    """Write what was replayed into files, so that memory does not grow with the log.

    No checkpoint names them yet: if this replay is interrupted, the next one starts over.
    """
    publish_all(store)
    job = CheckpointJob(store)
    job.write()
    deque(job.install(), maxlen=0)


def note_times(store: Store) -> None:
    """Note the time of each segment's first frame, for retention."""
    for segment in store.log.segments:
        frames = read_frames(segment, store.seed, from_offset=segment.start, end=segment.end)
        first = next(frames, None)
        if first is not None:
            segment.first_at_ms = first.stored_at_ms
