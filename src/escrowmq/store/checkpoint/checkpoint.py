"""Checkpoints: where a restart begins its replay, and which files hold everything before.

A checkpoint is one line with a checksum, then one line of JSON. It is written under a temporary
name, flushed and renamed, so a complete one always exists. The previous checkpoint is kept as
``checkpoint.old`` in case the newest is damaged. A checkpoint also holds what must outlive deleted
log: names, decided batches, and the core's facts about transactions that came in several requests.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.model.clock import Anchor
from escrowmq.model.lineage import Epoch
from escrowmq.store.checkpoint.parkings import SavedParkings
from escrowmq.store.disk.disk import read_whole, write_whole
from escrowmq.store.table.state_files import ChunkFile, survivors_name
from escrowmq.transaction.memory.batches import AppBatches, SavedExpiredQueries
from escrowmq.transaction.memory.catalog import SavedCatalog
from escrowmq.transaction.memory.origins import SavedOrigins
from escrowmq.transaction.memory.parts import TransactionParts
from escrowmq.transaction.memory.pops import PopPosition
from escrowmq.transaction.memory.uses import SavedUses
from escrowmq.transaction.records import NamedOrigin, NamedQueue, TimeMoved

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk

PATH = "checkpoint"
PREVIOUS = "checkpoint.old"
TEMPORARY = "checkpoint.tmp"
MAGIC = b"EMQC1"


class Checkpoint(msgspec.Struct, kw_only=True, frozen=True):
    """Everything below ``log_end`` is flushed and in the files named here."""

    #: The latest store time that it covers.
    at_ms: int
    #: Where the log begins, and the log offset up to which this checkpoint covers it.
    log_start: int
    log_end: int
    #: The first row in the files, and the next half offset.
    rows_start: int
    rows_end: int
    #: The state table's files: base, generation, rows, log offset of the first row, highest log
    #: offset of a row's bytes.
    chunks: list[ChunkFile]
    #: Bases of the chunks that stay in memory.
    live: list[int]
    #: Generation of the file with the survivors, and their number.
    survivors_generation: int
    survivors_count: int
    #: The key index's files.
    key_runs: list[str]
    #: Start and end of each queue, in the order of ``queues``.
    queue_bounds: list[tuple[int, int]]
    #: Queues and origins that the log has named, by number; without deleted queues and expired
    #: origins.
    queues: list[NamedQueue]
    origins: list[NamedOrigin]
    #: By head: undecided transactions of several requests.
    parts: dict[int, TransactionParts]
    #: By half offset: ms between the commit and when the message becomes visible.
    delays: dict[int, int]
    #: By head: when a parked transaction was resumed.
    resumed_at_ms: dict[int, int]
    #: By app id: the decided Spark batches.
    batches: dict[str, AppBatches]
    #: The highest ``store.copy_after_ms`` that was in force for any queue entry.
    copy_after_ms: int
    #: The frames that parked transactions.
    parkings: SavedParkings = SavedParkings()
    #: Log ranges ``[start, end)`` that repair took out.
    lost: list[tuple[int, int]] = []
    #: The epochs of the store's lineage; empty in a checkpoint of format version 1.
    epochs: list[Epoch] = []
    #: The next queue number; -1 in a checkpoint of a release that never dropped a queue.
    queues_end: int = -1
    #: Deleted queues that still have undecided or waiting messages.
    deleted_queues: list[NamedQueue] = []
    #: Topics, consumer groups, settings and users.
    catalog: SavedCatalog = SavedCatalog()
    #: Files of deleted queues that may still exist.
    garbage: list[str] = []
    #: Log offset up to which meta.db was written; a lower one in meta.db means an older copy.
    meta_at: int = -1
    #: The last ``TimeMoved`` record, and the last store time with its boot clock.
    time_moved: TimeMoved | None = None
    anchor: Anchor | None = None
    #: The next origin number, and when each origin was last used; None in a checkpoint of a
    #: release whose origins never expired.
    origin_uses: SavedOrigins | None = None
    #: Expired queries of Spark sinks.
    expired_queries: SavedExpiredQueries = SavedExpiredQueries()
    #: When groups and topics were last used.
    uses: SavedUses = SavedUses()
    #: By consumer group, then by queue number: what was acknowledged by pop.
    pops: dict[str, dict[int, PopPosition]] = {}
    #: Why the files must be rebuilt from the log; empty if they can be used.
    rebuild: str = ""

    def with_files(self, **files: Any) -> Checkpoint:  # noqa: ANN401 - fields of this class
        """Return a copy with these fields replaced."""
        return msgspec.structs.replace(self, **files)

    @property
    def origins_end(self) -> int:
        """The next origin number."""
        return len(self.origins) if self.origin_uses is None else self.origin_uses.end

    @property
    def next_queue(self) -> int:
        """The next queue number."""
        return len(self.queues) if self.queues_end < 0 else self.queues_end

    def state_files(self) -> list[str]:
        """Return the names of the state table's files that this checkpoint needs."""
        names = [chunk.name for chunk in self.chunks]
        if self.survivors_count:
            names.append(survivors_name(self.survivors_generation))
        return names


_decode = msgspec.json.Decoder(Checkpoint).decode


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as the bytes of its file."""
    body = msgspec.json.encode(checkpoint)
    return b"%s %08x\n%s\n" % (MAGIC, zlib.crc32(body), body)


def save(disk: Disk, checkpoint: Checkpoint) -> None:
    """Make this the newest checkpoint; durable when it returns."""
    write_whole(disk, TEMPORARY, encode(checkpoint))
    if disk.exists(PATH):
        disk.rename(PATH, PREVIOUS)
    disk.rename(TEMPORARY, PATH)
    disk.flush_directory("")


def load(disk: Disk, path: str) -> Checkpoint | None:
    """Return the checkpoint at this path, or None if it is missing or damaged."""
    if not disk.exists(path):
        return None
    head, _, rest = read_whole(disk, path).partition(b"\n")
    body = rest.removesuffix(b"\n")
    if head != b"%s %08x" % (MAGIC, zlib.crc32(body)):
        return None
    return _decode(body)
