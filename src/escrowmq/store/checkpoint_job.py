"""A checkpoint under way.

Made between two batches, when memory holds exactly what the log has written; ``write`` then does
the long work, which begins with flushing that, and may run in another thread while the store goes
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.store.checkpoint import Checkpoint
from escrowmq.store.consume_queue import remove_queue, write_tails
from escrowmq.transaction.core import Parts

if TYPE_CHECKING:
    from escrowmq.store.store import Store


class CheckpointJob:
    """What is to be written, frozen, and the checkpoint that will say so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unflushed = store.log.unflushed()
        queues = [store.queues[number] for number in store.core.names.queues]
        self._tails = [tail for queue in queues if (tail := queue.tail()) is not None]
        #: Directories of queues that the checkpoint which counts now does not name.  If that is
        #: damaged the one before it is used, but none of the files that it names.
        known_to = -1 if store.previous is None else store.previous.log_end
        self.removed = [path for path, at in store.garbage.items() if at < known_to]
        self._state = store.table.snapshot(store.last_at_ms, store.config.id_window_ms)
        snapshot = store.keys.snapshot()
        has_room = store.space.allows_files(store.keys.merge_bytes())
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
            garbage=dict(store.garbage),
            meta_at=store.meta_at,
            origins=list(core.names.origins.named.values()),
            origin_uses=core.names.origins.saved(),
            uses=core.uses.saved(),
            parts={
                head: Parts(list(parts.ranges), parts.messages, parts.bytes)
                for head, parts in core.parts.items()
            },
            delays=dict(core.delays),
            resumed_at_ms=dict(core.resumed_at_ms),
            batches=core.batches.saved(),
            past_apps=list(core.batches.past),
            expired_queries=core.batches.expired.packed(),
            copy_after_ms=store.copy_after_max_ms,
            parkings=store.parkings.saved(),
            lost=list(store.lost.ranges),
            epochs=list(core.lineage.epochs),
        )

    def write(self) -> None:
        """Put everything into files, flushed."""
        store = self._store
        # First, so that no file runs ahead of the log.
        for segment in self._unflushed:
            segment.file.flush()
        write_tails(store.disk, self._tails)
        store.table.files.write(self._state)
        for run in self._runs:
            run.write()
        for directory in self.removed:
            remove_queue(store.disk, directory)

    def install(self) -> Checkpoint:
        """Let memory forget what the files hold now; returns the checkpoint to save."""
        store = self._store
        store.log.note_flushed(self._frozen.log_end)
        for tail in self._tails:
            tail.queue.install(tail)
        store.table.install(self._state)
        for run in self._runs:
            store.keys.install(run)
        files = store.table.files
        return self._frozen.with_files(
            chunks=files.chunks,
            survivors_generation=files.survivors_generation,
            survivors_count=files.survivors_count,
            key_runs=store.keys.names(),
        )
