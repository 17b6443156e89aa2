"""A checkpoint in progress.

A job is created between two batches, when memory holds exactly what the log has written. ``write``
flushes the log, then does the long work. ``install`` drops from memory what the files hold.
``seal`` names the files, ``save`` makes the checkpoint the newest one, and ``finish`` tells the
store. ``write`` and ``save`` wait for the disk and may run in another thread while the store works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.store.checkpoint.checkpoint import Checkpoint, save
from escrowmq.store.index.key_index import remove_runs
from escrowmq.store.queue.consume_queue import write_tails

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.index.key_run import KeyRun
    from escrowmq.store.store import Store

INSTALLED_AT_ONCE = 1_024
"""Queues whose entries leave memory in one slice."""


class CheckpointJob:
    """Frozen data to be written, and the checkpoint that will name its files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checkpoint: Checkpoint | None = None
        #: The two newest checkpoints once this one is saved, and key runs that neither names.
        self._named: list[Checkpoint] = []
        self._garbage: list[KeyRun] = []
        self._unflushed = store.log.unflushed()
        queues = [store.queues[number] for number in store.core.names.queues]
        self._tails = [tail for queue in queues if (tail := queue.tail()) is not None]
        #: Files of queues that were deleted with their topic. Once this checkpoint is saved they
        #: are not needed: if it is damaged, recovery uses the one before, but rebuilds all files.
        self._removed = list(store.garbage)
        self._state = store.table.snapshot(store.last_at_ms, store.config.id_window_ms)
        snapshot = store.keys.snapshot()
        has_room = store.space.look_for_files(store.keys.merge_bytes())
        merge = store.keys.merge() if has_room and store.keys.merge_due() else None
        self._runs = [run for run in (snapshot, merge) if run is not None]
        core = store.core
        self._frozen = Checkpoint(
            at_ms=store.last_at_ms,
            log_start=store.log_start,
            log_end=store.log.end,
            rows_start=store.table.start,
            rows_end=store.table.end,
            chunks=[],
            live=[base for base in store.table.chunks if base not in self._state.dropped],
            survivors_generation=0,
            survivors_count=0,
            key_runs=[],
            queue_bounds=[(queue.start, queue.end) for queue in queues],
            queues=list(core.names.queues.values()),
            queues_end=core.names.queues_end,
            deleted_queues=list(core.names.deleted.values()),
            catalog=core.catalog.saved(),
            garbage=list(store.garbage),
            meta_at=store.meta_at,
            origins=list(core.names.origins.named.values()),
            origin_uses=core.names.origins.saved(),
            uses=core.uses.saved(),
            pops=core.pops.frozen(),
            parts=core.parts.frozen(),
            delays=dict(core.delays),
            resumed_at_ms=dict(core.resumed_at_ms),
            batches=core.batches.saved(),
            expired_queries=core.batches.expired.saved(),
            copy_after_ms=store.copy_after_max_ms,
            parkings=store.parkings.saved(),
            lost=list(store.lost.ranges),
            epochs=list(core.lineage.epochs),
            time_moved=core.time_moved,
            anchor=core.anchor,
        )

    def write(self) -> None:
        """Write everything to files and flush them."""
        store = self._store
        # The log is flushed first, so that no file is ahead of it.
        for segment in self._unflushed:
            segment.file.flush()
        write_tails(store.disk, self._tails)
        store.table.files.write(self._state)
        for run in self._runs:
            run.write()

    def install(self) -> Iterator[None]:
        """Drop from memory what the files hold now, a slice at a time.

        Reads and additions between slices see everything; only the next checkpoint must wait.
        """
        store = self._store
        store.log.note_flushed(self._frozen.log_end)
        for at in range(0, len(self._tails), INSTALLED_AT_ONCE):
            for tail in self._tails[at : at + INSTALLED_AT_ONCE]:
                tail.queue.install(tail)
            yield
        store.table.install(self._state)
        for run in self._runs:
            store.keys.install(run)

    def seal(self) -> None:
        """Name the checkpoint's files; they do not change from here on."""
        store = self._store
        files = store.table.files
        self._checkpoint = self._frozen.with_files(
            chunks=list(files.chunks),
            survivors_generation=files.survivors_generation,
            survivors_count=files.survivors_count,
            key_runs=store.keys.names(),
        )
        self._named = [one for one in (self._checkpoint, store.previous) if one is not None]
        self._garbage = store.keys.discard({name for one in self._named for name in one.key_runs})

    def save(self) -> None:
        """Make it the newest checkpoint and delete files it made obsolete. Safe in any thread."""
        assert self._checkpoint is not None, "it is not sealed"
        disk = self._store.disk
        save(disk, self._checkpoint)
        self._store.table.files.collect({name for one in self._named for name in one.state_files()})
        remove_runs(disk, self._garbage)
        for path in self._removed:
            disk.remove(path)

    def finish(self) -> None:
        """Note that replays start at this checkpoint from now on."""
        assert self._checkpoint is not None, "it is not sealed"
        for path in self._removed:
            del self._store.garbage[path]
        self._store.previous = self._checkpoint
        self._store.checkpointed = self._checkpoint.log_end
