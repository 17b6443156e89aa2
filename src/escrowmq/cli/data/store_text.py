"""Text of ``store check`` and ``store repair``: plain lines, on a terminal and in a pipe alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from escrowmq.cli.output import human_bytes
from escrowmq.store.repair.report import (
    BadRange,
    CheckpointFound,
    Hits,
    RangeKind,
    SegmentFound,
    StoreReport,
)

SHOWN_MAX = 20
"""The most lines of one kind in the text; JSON has all of them."""


def as_table(report: StoreReport) -> str:
    """Format the report of a check."""
    lines = [*_segments(report.segments), "", *_checkpoints(report.checkpoints), ""]
    lines += _counts(report)
    lines += _shown("", [f"At the next start: {text}" for text in report.leftovers])
    torn = [found for found in report.ranges if found.kind is RangeKind.TORN]
    lines += [
        f"At the next start: the torn tail, {found.length} bytes from log offset "
        f"{found.log_offset} on, is cut off; no client got an acknowledgement for it"
        for found in torn
    ]
    lines += ["", *damage(report)] if report.is_damaged else ["", "No damage found."]
    return "\n".join(lines)


def damage(report: StoreReport) -> Iterator[str]:
    """Yield lines about the damage, and about what is lost with it."""
    yield "Damage found:"
    yield from _shown("  ", [line for found in report.damage for line in _range(found)])
    yield from _shown(
        "  ",
        [f"{one.path} at {one.at}: {one.what} ({one.code})" for one in report.findings],
        left_out=report.findings_left_out,
    )
    lost = list(_lost(report.hits))
    if lost:
        yield "Lost with it:"
        yield from _shown("  ", lost)


def _range(found: BadRange) -> Iterator[str]:
    yield f"{found.segment}: {found.length} bytes from log offset {found.log_offset} {_is(found)}"
    yield from (f"    apparent content: {text}" for text in found.says)


def _is(found: BadRange) -> str:
    return {
        RangeKind.MISSING: "are missing",
        RangeKind.VERSION_UNKNOWN: "are of a newer format",
    }.get(found.kind, "are damaged")


def _lost(hits: Hits) -> Iterator[str]:
    yield from (_numbers("half message", span.first, span.count) for span in hits.halves)
    for span in hits.decisions:
        of = _numbers("half message", span.first, span.count)
        yield f"the record of the decision on {of}, which only the state table knows now"
    for place in hits.messages:
        of = _numbers("message", place.first, place.count)
        yield f"{of} in queue {place.queue_id} of topic {place.topic}"


def _numbers(what: str, first: int, count: int) -> str:
    return f"{what} {first}" if count == 1 else f"{what}s {first} to {first + count - 1}"


def _segments(segments: Sequence[SegmentFound]) -> list[str]:
    rows = [("SEGMENT", "FRAMES", "SIZE", "FIRST", "LAST")]
    rows += [
        (
            segment.path,
            str(segment.frames),
            human_bytes(segment.bytes),
            instant(segment.first_at_ms),
            instant(segment.last_at_ms),
        )
        for segment in segments
    ]
    return aligned(rows)


def _checkpoints(checkpoints: Sequence[CheckpointFound]) -> list[str]:
    rows = [("CHECKPOINT", "STATE", "LOG OFFSET", "TIME")]
    rows += [
        (
            found.path,
            "whole" if found.is_whole else "damaged",
            str(found.log_end) if found.is_whole else "-",
            instant(found.at_ms),
        )
        for found in checkpoints
    ]
    return aligned(rows)


def _counts(report: StoreReport) -> list[str]:
    counts = report.counts
    lost = sum(span.count for span in report.lost)
    log = f"offsets {report.log_start} to {report.log_end}, {counts.frames} frames"
    transactions = (
        f"{counts.prepared} undecided, {counts.parked} parked, "
        f"{counts.committed} committed, {counts.rolled_back} rolled back"
    )
    messages = (
        f"{counts.halves} half, {counts.stored} ordinary, {counts.scheduled} scheduled, "
        f"{counts.recalled} recalled"
    )
    return aligned(
        [
            ("Format", str(report.version)),
            ("Log", f"{log}; {lost} bytes were taken out by repairs" if lost else log),
            ("Transactions", transactions),
            ("Messages", messages),
            ("Visible", f"{counts.visible} in {counts.queues} queues"),
            ("Catalog", f"{counts.topics} topics, {counts.groups} consumer groups"),
        ]
    )


def instant(at_ms: int) -> str:
    """Format an instant in UTC; a dash stands for 0."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}Z" if at_ms else "-"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align columns to their widest value."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shown(indent: str, lines: Sequence[str], *, left_out: int = 0) -> list[str]:
    left_out += max(0, len(lines) - SHOWN_MAX)
    shown = [f"{indent}{line}" for line in lines[:SHOWN_MAX]]
    return [*shown, f"{indent}and {left_out} more"] if left_out else shown


def rows(report: StoreReport) -> list[tuple[str, str, int, str]]:
    """Return one row for each finding: code, file, position, description."""
    ranges = [
        (bad.kind.value, bad.segment, bad.log_offset, f"{bad.length} bytes")
        for bad in report.ranges
    ]
    return [*ranges, *((one.code, one.path, one.at, one.what) for one in report.findings)]
