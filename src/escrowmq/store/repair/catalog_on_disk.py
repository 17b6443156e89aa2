"""Reads topics, groups and users of a store without opening it.

The newest checkpoint has them as of its end of the log, so only the log after it is read. Nothing
is written, and nothing is decided: a torn tail ends the reading, as it ends a recovery.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from escrowmq.store.log.commit_log import Segment, read_frames
from escrowmq.store.recovery import format as formats
from escrowmq.store.repair.backup import pin
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.records import CatalogRecord

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk


def read_catalog(disk: Disk) -> Catalog:
    """Return the catalog that a recovery of this store would find."""
    seed = formats.read(disk).seed
    catalog = Catalog()
    with closing(pin(disk)) as pinned:
        offset = pinned.log_start
        if pinned.checkpoint is not None:
            catalog.load(pinned.checkpoint.catalog)
            offset = pinned.checkpoint.log_end
        for start, (file, size) in pinned.segments.items():
            segment = Segment(start, file, size)
            if not segment.start <= offset < segment.end:
                continue
            for frame in read_frames(segment, seed, from_offset=offset, end=segment.end):
                for record in frame.records:
                    if isinstance(record, CatalogRecord):
                        catalog.apply(record, frame.log_offset)
                offset = frame.end
    return catalog
