"""Checkpoints: from where a restart must replay, and which files hold what came before.

A checkpoint is one JSON line behind a line with its checksum.  It is written to a temporary name,
flushed and renamed, so there is always a whole one; the one before it is kept as ``checkpoint.old``
in case the newest is damaged.  It also holds what must outlive deleted log: names, decided batches,
and what the core knows of transactions that came in several requests.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.model.clock import Anchor
from escrowmq.model.lineage import Epoch
from escrowmq.store.parkings import SavedParkings
from escrowmq.store.state_files import ChunkFile, survivors_name
from escrowmq.transaction.batches import AppBatches, SavedExpiredQueries
from escrowmq.transaction.catalog import SavedCatalog
from escrowmq.transaction.origins import SavedOrigins
from escrowmq.transaction.parts import Parts
from escrowmq.transaction.records import NamedOrigin, NamedQueue, TimeMoved
from escrowmq.transaction.uses import SavedUses

if TYPE_CHECKING:
    from escrowmq.store.disk import Disk

PATH = "checkpoint"
PREVIOUS = "checkpoint.old"
TEMPORARY = "checkpoint.tmp"
MAGIC = b"EMQC1"


class Checkpoint(msgspec.Struct, kw_only=True, frozen=True):
    """Everything below ``log_end`` is flushed and in the files named here."""

    #: The last store time.
    at_ms: int
    #: Where the log begins, and up to where this checkpoint holds it.
    log_start: int
    log_end: int
    #: The first row that files hold, and the next half offset.
    rows_start: int
    rows_end: int
    #: The state table's files: base, generation, rows, log offset of the first row.
    chunks: list[ChunkFile]
    #: Bases of the chunks that are in memory.
    live: list[int]
    #: Which file holds the survivors, and how many.
    survivors_generation: int
    survivors_count: int
    #: The key index's files.
    key_runs: list[str]
    #: Start and end of each queue, in the order of their names.
    queue_bounds: list[tuple[int, int]]
    #: Every name that the log has given, in the order of the numbers; not those of queues that are
    #: gone.
    queues: list[NamedQueue]
    origins: list[NamedOrigin]
    #: By head: undecided transactions of several requests.
    parts: dict[int, Parts]
    #: By half offset: how long after the commit it becomes visible.
    delays: dict[int, int]
    #: By head: when a transaction that was parked was resumed.
    resumed_at_ms: dict[int, int]
    #: By app id: the decided Spark batches.
    batches: dict[str, AppBatches]
    #: The highest ``store.copy_after_ms`` that any entry in a queue was made with.
    copy_after_ms: int
    #: Which frames parked transactions.
    parkings: SavedParkings = SavedParkings()
    #: Ranges of the log that repair took out: start and end.
    lost: list[tuple[int, int]] = []
    #: The epochs of the store's lineage; none in a checkpoint of format version 1.
    epochs: list[Epoch] = []
    #: The next number of a queue; -1 in a checkpoint of a version that never forgot one.
    queues_end: int = -1
    #: Deleted queues that have something undecided, or waiting, in them.
    deleted_queues: list[NamedQueue] = []
    #: Topics, consumer groups and settings.
    catalog: SavedCatalog = SavedCatalog()
    #: Files of deleted queues that may still be there.
    garbage: list[str] = []
    #: Up to which log offset meta.db stood; an older copy of that file is recognized by it.
    meta_at: int = -1
    #: What happened to store time last, and the last time that is known by the boot clock.
    time_moved: TimeMoved | None = None
    anchor: Anchor | None = None
    #: Which numbers of origins were given, and when each was last used; None in a checkpoint of
    #: a release whose origins never expired.
    origin_uses: SavedOrigins | None = None
    #: Queries of Spark sinks that expired.
    expired_queries: SavedExpiredQueries = SavedExpiredQueries()
    #: When groups and topics were last used.
    uses: SavedUses = SavedUses()
    #: Why the files must not be used but made anew from the log, if so.
    rebuild: str = ""

    def with_files(self, **files: Any) -> Checkpoint:  # noqa: ANN401 - fields of this class
        """The same, with the files that hold it."""
        return msgspec.structs.replace(self, **files)

    @property
    def origins_end(self) -> int:
        """The next number of an origin."""
        return len(self.origins) if self.origin_uses is None else self.origin_uses.end

    @property
    def next_queue(self) -> int:
        """The next number of a queue."""
        return len(self.queues) if self.queues_end < 0 else self.queues_end

    def state_files(self) -> list[str]:
        """Names of the state table's files that it counts on."""
        names = [chunk.name for chunk in self.chunks]
        if self.survivors_count:
            names.append(survivors_name(self.survivors_generation))
        return names


_decode = msgspec.json.Decoder(Checkpoint).decode


def encode(checkpoint: Checkpoint) -> bytes:
    """What its file holds."""
    body = msgspec.json.encode(checkpoint)
    return b"%s %08x\n%s\n" % (MAGIC, zlib.crc32(body), body)


def save(disk: Disk, checkpoint: Checkpoint) -> None:
    """Make this the newest checkpoint; durable when it returns."""
    file = disk.open(TEMPORARY, create=True)
    try:
        file.truncate(0)
        file.write_at(0, encode(checkpoint))
        file.flush()
    finally:
        file.close()
    if disk.exists(PATH):
        disk.rename(PATH, PREVIOUS)
    disk.rename(TEMPORARY, PATH)
    disk.flush_directory("")


def load(disk: Disk, path: str) -> Checkpoint | None:
    """The checkpoint at this path; None if it is missing or damaged."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    head, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if head != b"%s %08x" % (MAGIC, zlib.crc32(body)):
        return None
    return _decode(body)
