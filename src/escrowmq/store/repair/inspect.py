"""``check``: reads a store without changing anything, and reports what is wrong with it.

It works on a store that does not open. Memory stays bounded: the log is read frame by frame, the
projections piece by piece. While a broker writes to the store, its end may look torn.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.disk import reserve
from escrowmq.store.log import commit_log
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.recovery import format as formats
from escrowmq.store.repair.frame_check import FrameCheck
from escrowmq.store.repair.log_walk import FoundFrame, open_log, walk
from escrowmq.store.repair.projection_check import ProjectionCheck, add_gaps
from escrowmq.store.repair.report import (
    CheckpointFound,
    NumberSpan,
    RangeKind,
    SegmentFound,
    StoreReport,
)
from escrowmq.store.repair.sequence import Sequence
from escrowmq.store.repair.tally import Tally
from escrowmq.transaction.memory.catalog import SavedCatalog
from escrowmq.transaction.records import Lost

if TYPE_CHECKING:
    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.log.commit_log import CommitLog
    from escrowmq.store.repair.report import NumberGap
    from escrowmq.transaction.records import NamedOrigin, NamedQueue

_ATTEMPTS_MAX = 3


class Inspection(msgspec.Struct, kw_only=True):
    """A report, and the other facts that a repair needs."""

    report: StoreReport
    seed: int
    checkpoint: Checkpoint | None
    #: The highest offset that an intact frame or checkpoint knows to be flushed.
    flushed: int = 0
    queues: dict[int, NamedQueue] = {}
    origins: dict[int, NamedOrigin] = {}


def check(disk: Disk) -> StoreReport:
    """Return a report of what is in the store on this disk, and of everything wrong with it."""
    return inspect(disk).report


def inspect(disk: Disk) -> Inspection:
    """Inspect the store on this disk; return the report and what a repair needs."""
    if not disk.exists(formats.PATH):
        raise StoreUnusable("store_missing", "there is no store in this directory")
    form = formats.read(disk)
    report = StoreReport(version=form.version)
    _find_foreign(disk, report)
    checkpoint = _checkpoints(disk, report)
    inspection = Inspection(report=report, seed=form.seed, checkpoint=checkpoint)
    with closing(open_log(disk, checkpoint.log_start if checkpoint else 0, report)) as log:
        _walk(log, inspection)
    known_to = 0
    if checkpoint is not None and checkpoint.rebuild:
        report.leftovers.append(f"all projections must be rebuilt: {checkpoint.rebuild}")
    elif checkpoint is not None:
        before = len(report.findings)
        _projections(disk, checkpoint, inspection)
        # Facts that intact projections hold are not lost with the frames that stated them.
        known_to = checkpoint.log_end if len(report.findings) == before else 0
    add_gaps(report, inspection.queues, known_to)
    return inspection


def _find_foreign(disk: Disk, report: StoreReport) -> None:
    ours = (
        *formats.DIRECTORIES,
        *formats.OPTIONAL,
        formats.PATH,
        checkpoints.PATH,
        checkpoints.PREVIOUS,
        reserve.PATH,
    )
    for name in disk.list(""):
        if name in (formats.TEMPORARY, checkpoints.TEMPORARY):
            report.leftovers.append(f"{name}: an unfinished file")
        elif name not in ours:
            report.note("store_foreign", name, "not a file of the store")


def _checkpoints(disk: Disk, report: StoreReport) -> Checkpoint | None:
    newest = None
    for path in (checkpoints.PATH, checkpoints.PREVIOUS):
        if not disk.exists(path):
            continue
        found = checkpoints.load(disk, path)
        if found is None:
            report.checkpoints.append(CheckpointFound(path=path, is_whole=False))
            report.note("checkpoint_damaged", path, "its checksum is wrong")
            continue
        report.checkpoints.append(
            CheckpointFound(
                path=path,
                is_whole=True,
                at_ms=found.at_ms,
                log_start=found.log_start,
                log_end=found.log_end,
            )
        )
        newest = newest or found
    return newest


def _walk(log: CommitLog, inspection: Inspection) -> None:
    """Read the log from its start, and note what its frames say."""
    report, checkpoint = inspection.report, inspection.checkpoint
    log_start = _start(log, inspection)
    report.log_start = report.log_end = log_start
    segments = {
        segment.start: SegmentFound(
            path=segment_path(segment.start), start=segment.start, bytes=segment.size
        )
        for segment in log.segments
    }
    report.segments = list(segments.values())
    sequence = Sequence(log_start, checkpoint)
    messages = FrameCheck(checkpoint, report)
    inspection.queues, inspection.origins = messages.queues, messages.origins
    tally = Tally(SavedCatalog() if checkpoint is None else checkpoint.catalog)
    ahead = checkpoint
    last_at_ms = 0
    checkpointed = {one.log_end for one in report.checkpoints if one.is_whole}
    inspection.flushed = max(checkpointed, default=0)
    for found in walk(log, inspection.seed, log_start=log_start, checkpointed=checkpointed):
        offset = found.frame.log_offset if isinstance(found, FoundFrame) else found.log_offset
        if ahead is not None and offset >= ahead.log_end:
            sequence.meet(ahead)
            ahead = None
        if not isinstance(found, FoundFrame):
            report.ranges.append(msgspec.structs.replace(found, stored_at_ms=last_at_ms))
            report.log_end = found.log_offset if found.kind is RangeKind.TORN else found.end
            continue
        if not last_at_ms:
            _date(report, found.frame.stored_at_ms)
        last_at_ms = found.frame.stored_at_ms
        inspection.flushed = max(inspection.flushed, found.frame.flushed)
        report.log_end = found.frame.end
        _count_frame(segments[found.segment.start], found)
        records = found.frame.records
        _note_lost(report, found)
        messages.read(found)
        sequence.read(records, offset)
        tally.read(records)
    if ahead is not None:
        sequence.meet(ahead)
    if not last_at_ms and checkpoint is not None:
        _date(report, checkpoint.at_ms)
    if checkpoint is not None or not log_start:
        _judge_sequence(sequence, report)
    report.counts = tally.counts()
    report.counts.queues = sequence.queues


def _start(log: CommitLog, inspection: Inspection) -> int:
    """Return where the log must start; note a missing checkpoint."""
    if inspection.checkpoint is not None:
        return inspection.checkpoint.log_start
    if log.start:
        inspection.report.note(
            "checkpoint_missing",
            checkpoints.PATH,
            "the log no longer starts at 0, so it cannot be replayed without one",
        )
    return log.start


def _date(report: StoreReport, at_ms: int) -> None:
    """Give this store time to all bad ranges before the first intact frame."""
    report.ranges = [msgspec.structs.replace(one, stored_at_ms=at_ms) for one in report.ranges]


def _note_lost(report: StoreReport, found: FoundFrame) -> None:
    for record in found.frame.records:
        if type(record) is Lost:
            report.lost.append(NumberSpan(first=found.frame.log_offset, count=record.length))


def _count_frame(segment: SegmentFound, found: FoundFrame) -> None:
    segment.frames += 1
    segment.first_at_ms = segment.first_at_ms or found.frame.stored_at_ms
    segment.last_at_ms = found.frame.stored_at_ms


def _judge_sequence(sequence: Sequence, report: StoreReport) -> None:
    """Keep gaps that a damaged range explains; report other gaps, and repeats, as findings."""
    report.gaps = [gap for gap in sequence.gaps if _is_explained(gap, report)]
    for gap in sequence.gaps:
        if gap not in report.gaps:
            report.note(
                "sequence_gap",
                commit_log.DIRECTORY,
                f"{_name(gap)} {gap.expected} to {gap.found - 1} were never given",
                at=gap.before,
            )
    for gap in sequence.repeats:
        report.note(
            "sequence_repeated",
            commit_log.DIRECTORY,
            f"{_name(gap)} {gap.found} follows {gap.expected - 1}",
            at=gap.before,
        )


def _is_explained(gap: NumberGap, report: StoreReport) -> bool:
    return any(gap.after <= found.log_offset < gap.before for found in report.damage)


def _name(gap: NumberGap) -> str:
    if gap.queue >= 0:
        return f"offset in queue number {gap.queue}"
    return gap.what.replace("_", " ")


def _projections(disk: Disk, checkpoint: Checkpoint, inspection: Inspection) -> None:
    """Check the projections, and start over if a broker takes a newer checkpoint meanwhile."""
    report = inspection.report
    findings, left_out = list(report.findings), report.findings_left_out
    for _ in range(_ATTEMPTS_MAX):
        report.findings, report.findings_left_out = list(findings), left_out
        report.hits.halves, report.hits.decisions, report.hits.messages = [], [], []
        ProjectionCheck(disk, report).read(checkpoint)
        newest = checkpoints.load(disk, checkpoints.PATH)
        if newest is None or newest.log_end <= checkpoint.log_end:
            break
        checkpoint = newest
