"""Settings of the store that an operator can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from escrowmq.model.bounds import check_bounds, check_order
from escrowmq.model.errors import RequestRefused

MIB = 1024 * 1024
GIB = 1024 * MIB
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Section ``[store]``."""

    #: When the broker replies: "fsync" after the data is on disk, "os" after the kernel has it.
    durability: Literal["fsync", "os"] = "fsync"
    #: A commit log segment is closed when the next frame would make it larger than this.
    segment_bytes_max: int = GIB
    #: Bytes of log between two checkpoints; limits how much a restart must replay.
    checkpoint_bytes: int = 64 * MIB
    #: Messages older than this may be deleted.
    retention_ms: int = 72 * HOUR_MS
    #: Retention deletes the oldest segments of a log larger than this; 0 means no limit. Messages
    #: that are undecided, parked or not yet visible do not count.
    retention_bytes: int = 0
    #: While less than this is free on the disk, the broker refuses new messages. Below half of it,
    #: the broker also refuses decisions; below a quarter, it writes nothing. 0 turns this off. An
    #: eighth is held by a reserve file, which the broker releases on a full disk to recover or to
    #: delete old log.
    free_bytes_min: int = 256 * MIB
    #: A half or delayed message at least this old when it becomes visible is copied to the end of
    #: the log, so that consumers can read it for a full retention period.
    copy_after_ms: int = HOUR_MS
    #: Rows per chunk of the state table.
    chunk_rows: int = 65_536
    #: How long decided transactions stay in memory at least, so that the broker recognizes a
    #: repeated half message.
    id_window_ms: int = 120_000

    def __post_init__(self) -> None:
        if self.durability not in ("fsync", "os"):
            raise RequestRefused(
                "bad_config",
                'set it to "fsync" or "os"',
                key="store.durability",
                value=self.durability,
            )
        check_bounds("store", self, _BOUNDS)
        check_order("store", self, "copy_after_ms", "retention_ms")


COPY_AFTER_MAX_MS = 10 * 365 * 24 * HOUR_MS

_BOUNDS = (
    ("segment_bytes_max", 4096, 64 * GIB),
    ("checkpoint_bytes", 4096, 16 * GIB),
    ("retention_ms", 1, 10 * 365 * 24 * HOUR_MS),
    ("retention_bytes", 0, 2**62),
    ("free_bytes_min", 0, 2**62),
    ("copy_after_ms", 0, COPY_AFTER_MAX_MS),
    ("chunk_rows", 8, 65_536),
    ("id_window_ms", 0, 24 * HOUR_MS),
)
