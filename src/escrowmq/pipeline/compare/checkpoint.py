"""The checkpoint of the half/op comparison: how far it has read, and what is undecided there.

Half and op records are read to the same log offset, so one offset is the progress of both. Every
half message below ``decided_before`` is decided. The checkpoint holds the undecided requests, so a
round needs the new records and these, and not the history. Writing one replaces the file; a damaged
one is dropped, and the comparison begins anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from escrowmq.model.event_log import event_log
from escrowmq.pipeline.audit.arrays import HALF, Rows
from escrowmq.pipeline.lake.storage import files_below, read_whole, write_whole
from escrowmq.protocol.native.comparisons import DIFFERENCES_MAX

log = event_log(__name__)

MAGIC = b"EQHO"
VERSION = 1
KEPT_MAX = 10 * DIFFERENCES_MAX
"""The most differences that a checkpoint holds."""
_HEAD_BYTES = 8

BegunFor: TypeAlias = Literal[
    "",
    "first_round",
    "checkpoint_damaged",
    "other_store",
    "history_forked",
    "records_deleted",
    "open_again",
]
"""Why a comparison begins anew at the start of the log; empty if it continues."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Records and state store differ about one request."""

    #: A finding of the audit.
    finding: str
    half_offset: int
    head: int
    message_count: int
    #: The state by the records, and by the state store; -1 for none.
    recorded: int
    listed: int
    #: The pipeline's clock.
    found_at_ms: int


class ComparisonCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the comparison after a round."""

    version: int = VERSION
    #: Log offset and history, as checkpoints of streams keep them.
    position: dict[str, Any]
    #: Half messages below this half offset were compared.
    half_end: int
    #: Below this half offset, only the open requests are known.
    known_from: int
    #: Undecided requests: packed ``HALF`` rows in the order of their offsets.
    open: bytes = b""
    #: Undecided requests that the checkpoint had no room for, and the first of them.
    left_out: int = 0
    left_out_from: int = -1
    #: Differences that still hold.
    differences: tuple[Difference, ...] = ()

    @property
    def open_rows(self) -> Rows:
        """The undecided requests."""
        return np.frombuffer(self.open, HALF)

    @property
    def log_offset(self) -> int:
        """Records below this log offset were compared."""
        return int(self.position["at"])

    @property
    def decided_before(self) -> int:
        """Every half message below this half offset is decided."""
        rows = self.open_rows
        first = int(rows["first"][0]) if len(rows) else self.half_end
        return min(first, self.left_out_from) if self.left_out else first


class Checkpoints:
    """The checkpoints of all brokers, below a directory or a URI; one file for each store."""

    def __init__(self, uri: str, storage: Mapping[str, str] | None = None) -> None:
        self._files = files_below(f"{uri}/comparison", storage or {})

    def load(self, store_id: str) -> tuple[ComparisonCheckpoint | None, BegunFor]:
        """Return a store's checkpoint, or None and the reason."""
        data = read_whole(self._files, _path(store_id))
        if data is None:
            return None, "first_round"
        checkpoint = _decoded(data)
        if checkpoint is None:
            log.warning("comparison_checkpoint_damaged", extra={"store_id": store_id})
            return None, "checkpoint_damaged"
        return checkpoint, ""

    def save(self, store_id: str, checkpoint: ComparisonCheckpoint) -> None:
        """Write a store's checkpoint in place of its last one."""
        body = msgspec.msgpack.encode(checkpoint)
        check = zlib.crc32(body).to_bytes(4, "little")
        write_whole(self._files, _path(store_id), MAGIC + check + body)


def _path(store_id: str) -> str:
    return f"{store_id}.checkpoint"


def _decoded(data: bytes) -> ComparisonCheckpoint | None:
    """The checkpoint; None if it is damaged, or of another version."""
    body = data[_HEAD_BYTES:]
    check = zlib.crc32(body).to_bytes(4, "little")
    if data[:_HEAD_BYTES] != MAGIC + check:
        return None
    try:
        checkpoint = msgspec.msgpack.decode(body, type=ComparisonCheckpoint)
    except msgspec.MsgspecError:
        return None
    return checkpoint if checkpoint.version == VERSION else None
