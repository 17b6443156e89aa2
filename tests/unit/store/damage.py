"""Helpers for tests that damage a store."""

from __future__ import annotations

from escrowmq.model.resolution import Resolution
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.repair import Repaired, repair
from escrowmq.store.repair.report import BadRange, StoreReport
from escrowmq.store.store import Store
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.commands import End, EndReply
from tests.unit.store.shop import Frame, Shop, frames_of, opened


def segments(disk: FaultyDisk) -> list[str]:
    return [f"commitlog/{name}" for name in disk.list("commitlog")]


def only_range(report: StoreReport) -> BadRange:
    assert len(report.ranges) == 1
    return report.ranges[0]


def codes(report: StoreReport) -> set[str]:
    return {finding.code for finding in report.findings}


def damaged(shop: Shop, *frames: Frame) -> FaultyDisk:
    """The shop's disk with a bit flipped in each of these frames."""
    disk = FaultyDisk(shop.image())
    for frame in frames:
        segment = next(s for s in shop.store.log.segments if s.start <= frame.start < s.end)
        disk.flip_bit(segment_path(segment.start), frame.start - segment.start + 46, 0)
    return disk


def repaired(disk: FaultyDisk) -> tuple[Store, FaultyDisk, Repaired]:
    aside = FaultyDisk()
    done = repair(disk, aside)
    assert not check(disk).is_damaged
    return opened(disk)[0], aside, done


def frame_of(shop: Shop, row: int) -> Frame:
    """The frame that holds this half message."""
    return next(frame for frame in frames_of(shop.store) if row in frame.rows)


def end(store: Store, shop: Shop, head: int, resolution: Resolution) -> EndReply:
    decision = store.execute(End(half_offset=head, resolution=resolution, by="shop"), shop.now_ms)
    if decision.refused is not None:
        raise decision.refused
    assert isinstance(decision.reply, EndReply)
    return decision.reply


def frames_of_rows(shop: Shop, head: int) -> list[Frame]:
    """The frames that hold a transaction's requests."""
    shop.store.sync()
    return [frame for frame in frames_of(shop.store) if head in frame.rows and not frame.places]
