"""Repairs a damaged store without deleting a byte.

Damaged ranges of the log are copied aside and filled, so that everything else keeps its log offset.
Damaged files that the log can rebuild are moved aside. Lost data stays lost and is reported:
afterwards ``end_lost`` ends the transactions that can no longer be delivered whole.

Each step is durable before the next begins, and all steps can be repeated after a crash.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.disk.disk import write_whole
from escrowmq.store.log.commit_log import DIRECTORY, TEMPORARY, segment_path
from escrowmq.store.log.frames import HEAD_BYTES, stated_head
from escrowmq.store.repair.filler import Filler, fillers
from escrowmq.store.repair.inspect import Inspection, inspect
from escrowmq.store.repair.report import NumberSpan, RangeKind
from escrowmq.store.retention.needed import needed_rows
from escrowmq.transaction.commands import Abandon
from escrowmq.transaction.decisions.losing import is_incomplete
from escrowmq.transaction.memory.origins import EXPIRED

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk, File
    from escrowmq.store.repair.report import StoreFault, StoreReport
    from escrowmq.store.store import Store
    from escrowmq.transaction.states import State

BY = "store repair"
REPORT = "report.json"
#: Codes of findings about files that are rebuilt from the log.
PROJECTIONS = ("state_table_damaged", "consume_queue_damaged", "key_index_damaged")
_COPIED_BYTES = 4 * 1024 * 1024


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or a range of one, that was put aside."""

    #: The original path, and the name of the copy in the directory aside.
    path: str
    copy: str


class Repaired(msgspec.Struct, kw_only=True):
    """What a repair did."""

    copies: list[Copied] = []
    #: Ranges of the log that were filled.
    filled: list[NumberSpan] = []
    #: Whether the next start rebuilds all projections.
    is_rebuilt: bool = False


class Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """A half message that was ended because it can no longer be delivered."""

    half_offset: int
    state: State
    producer_group: str
    topic: str


def repair(disk: Disk, aside: Disk, inspection: Inspection | None = None) -> Repaired:
    """Take the damage out of a store; copies go to the root of ``aside``.

    The caller holds the lock of the data directory. If it passes an inspection, it has held the
    lock since then.
    """
    inspection = inspection or inspect(disk)
    refuse_impossible(inspection)
    filling = fillers(inspection)
    places = [one.place for one in filling]
    repaired = Repaired(
        filled=[NumberSpan(first=one.log_offset, count=one.length) for one in places]
    )
    if inspection.report.is_damaged:
        _keep_report(aside, inspection)
    _copy_ranges(disk, aside, inspection, repaired)
    _move_checkpoints(disk, aside, inspection, repaired)
    _note_in_checkpoint(disk, inspection, repaired)
    for filler in filling:
        _fill(disk, filler, inspection.seed)
    _move_projections(disk, aside, inspection, repaired)
    return repaired


def fixable(report: StoreReport) -> list[StoreFault]:
    """Return findings about files that can be moved aside: the log or an older file has it all."""
    return [one for one in report.findings if one.code in (*PROJECTIONS, "checkpoint_damaged")]


def refuse_impossible(inspection: Inspection) -> None:
    """Raise if only a person can repair the damage."""
    report = inspection.report
    for found in report.damage:
        if found.kind is RangeKind.VERSION_UNKNOWN:
            raise StoreUnusable(
                "frame_version_unknown",
                "a newer EscrowMQ wrote this log; use that one",
                segment=found.segment,
                log_offset=found.log_offset,
            )
    for finding in report.findings:
        if finding.code == "store_foreign":
            raise StoreUnusable("store_foreign", "move this file away", path=finding.path)
        if finding.code == "checkpoint_missing":
            raise StoreCorrupt(
                "checkpoint_missing",
                "the log no longer starts at 0, so it cannot be replayed without one; "
                "restore the file from a backup",
                path=finding.path,
                log_start=report.log_start,
            )


def _keep_report(aside: Disk, inspection: Inspection) -> None:
    aside.make_directory("")
    data = msgspec.json.format(msgspec.json.encode(inspection.report), indent=2)
    write_whole(aside, REPORT, data)
    aside.flush_directory("")


def _copy(source: File, start: int, end: int, aside: Disk, path: str) -> None:
    aside.make_directory(path.rpartition("/")[0])
    with closing(aside.open(path, create=True)) as target:
        target.truncate(0)
        for offset in range(start, end, _COPIED_BYTES):
            size = min(_COPIED_BYTES, end - offset)
            target.write_at(offset - start, source.read_at(offset, size))
        target.flush()
    aside.flush_directory(path.rpartition("/")[0])


def _copy_ranges(disk: Disk, aside: Disk, inspection: Inspection, repaired: Repaired) -> None:
    for found in inspection.report.damage:
        if found.kind is not RangeKind.DAMAGED:
            continue
        start = int(found.segment.rpartition("/")[2])
        copy = f"{found.segment}.at-{found.log_offset}.length-{found.length}"
        with closing(disk.open(found.segment)) as file:
            _copy(file, found.log_offset - start, found.end - start, aside, copy)
        repaired.copies.append(Copied(path=found.segment, copy=copy))


def _move(disk: Disk, aside: Disk, path: str, repaired: Repaired) -> None:
    """Copy the file aside, then remove it: the directories may be on different file systems."""
    if not disk.exists(path):
        return
    with closing(disk.open(path)) as file:
        _copy(file, 0, file.size(), aside, path)
    disk.remove(path)
    disk.flush_directory(path.rpartition("/")[0])
    repaired.copies.append(Copied(path=path, copy=path))


def _move_checkpoints(disk: Disk, aside: Disk, inspection: Inspection, repaired: Repaired) -> None:
    for found in inspection.report.checkpoints:
        if not found.is_whole:
            _move(disk, aside, found.path, repaired)


def _note_in_checkpoint(disk: Disk, inspection: Inspection, repaired: Repaired) -> None:
    """Record the lost ranges before any is filled: readers must skip them from then on."""
    checkpoint = inspection.checkpoint
    damaged = [one for one in inspection.report.findings if one.code in PROJECTIONS]
    if checkpoint is None or not (damaged or repaired.filled):
        return
    repaired.is_rebuilt = bool(damaged)
    lost = {*checkpoint.lost, *((one.first, one.first + one.count) for one in repaired.filled)}
    checkpoints.save(
        disk,
        msgspec.structs.replace(
            checkpoint,
            lost=sorted(lost),
            rebuild=f"{damaged[0].path}: {damaged[0].what}" if damaged else checkpoint.rebuild,
        ),
    )


def _fill(disk: Disk, filler: Filler, seed: int) -> None:
    if filler.place.kind is RangeKind.MISSING:
        _fill_hole(disk, filler, seed)
        return
    start = int(filler.place.segment.rpartition("/")[2])
    with closing(disk.open(filler.place.segment)) as file:
        for offset, frame in filler.frames(seed):
            file.write_at(offset - start, frame)
        file.flush()


def _fill_hole(disk: Disk, filler: Filler, seed: int) -> None:
    """Fill the hole with a new segment; bytes between head and records are left unwritten."""
    start = filler.place.log_offset
    path = segment_path(start)
    with closing(disk.open(path + TEMPORARY, create=True)) as file:
        file.truncate(0)
        file.truncate(filler.place.length)
        for offset, frame in filler.frames(seed):
            head = stated_head(frame)
            assert head is not None
            file.write_at(offset - start, frame[:HEAD_BYTES])
            file.write_at(offset - start + head.records_at, frame[head.records_at :])
        file.flush()
    disk.rename(path + TEMPORARY, path)
    disk.flush_directory(DIRECTORY)


def _move_projections(disk: Disk, aside: Disk, inspection: Inspection, repaired: Repaired) -> None:
    for finding in inspection.report.findings:
        if finding.code in PROJECTIONS:
            _move(disk, aside, finding.path, repaired)


def end_lost(store: Store, now_ms: int, *, batch_max: int = 1_000) -> list[Abandoned]:
    """End transactions that can no longer be delivered whole, in a store opened after a repair.

    Without this, retention would stop at half messages whose bytes cannot be carried forward.
    """
    ended: list[Abandoned] = []
    core = store.core
    for row in needed_rows(store.table):
        half = store.core.row(row)
        if not (store.lost.hold(half.location) or is_incomplete(core, half)):
            continue
        if store.execute(Abandon(half_offset=row, by=BY), now_ms).records:
            named = core.names.named(half.queue)
            ended.append(
                Abandoned(
                    half_offset=row,
                    state=half.state,
                    producer_group=_group(store, half.origin),
                    topic=named.topic,
                )
            )
            if not len(ended) % batch_max:
                store.sync()
    store.sync()
    return ended


def _group(store: Store, origin: int) -> str:
    group = store.core.names.origins[origin].group
    return "" if group == EXPIRED else group
