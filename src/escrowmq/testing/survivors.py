"""Strategies that choose which unflushed operations survive a power cut.

A strategy gets all pending operations of a disk in order, and returns those that reached the disk,
in the same order. It replaces a torn write by its surviving parts. Strategies with a parameter are
values, so a failed test prints how to reproduce the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from escrowmq.testing.journal import Extend, PendingOperation, Write

Survivors = Callable[[Sequence[PendingOperation]], Iterable[PendingOperation]]

#: Unit of an atomic disk write. Parts of a write in different sectors may land in any order.
SECTOR_BYTES = 512


def nothing_survives(_pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """Keep only flushed operations."""
    return ()


def everything_survives(pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """Keep all pending operations, as if the system had already written them back."""
    return pending


@dataclass(frozen=True, slots=True)
class Only:
    """One pending operation survives, all others are lost."""

    index: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        return (pending[self.index],)


@dataclass(frozen=True, slots=True)
class AllBut:
    """One pending operation is lost, all others survive."""

    index: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        return (*pending[: self.index], *pending[self.index + 1 :])


@dataclass(frozen=True, slots=True)
class First:
    """The first ``count`` operations survive, as on a disk that writes in order."""

    count: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        return pending[: self.count]


@dataclass(frozen=True, slots=True)
class Torn:
    """Only the byte ranges ``kept`` of one pending write survive; all other operations survive.

    With ``sized`` the file is as long as if the whole write had survived. Missing bytes beyond its
    old end read as zeros.
    """

    index: int
    kept: tuple[tuple[int, int], ...]
    sized: bool = False

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        write = pending[self.index]
        assert isinstance(write, Write), write
        parts = torn_parts(write, self.kept, sized=self.sized)
        return (*pending[: self.index], *parts, *pending[self.index + 1 :])


@dataclass(frozen=True, slots=True)
class TornLast:
    """The first ``kept_bytes`` of the last pending write survive; all other operations survive."""

    kept_bytes: int
    sized: bool = False

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        index = last_write(pending)
        if index is None:
            return pending
        return Torn(index, ((0, self.kept_bytes),), self.sized)(pending)


@dataclass(frozen=True, slots=True)
class RandomSubset:
    """Each operation survives, is lost or is torn at random, determined by the seed."""

    seed: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """Return the surviving operations."""
        rng = Random(self.seed)
        # Draw the share, from nearly nothing to nearly everything. A fixed half would miss both.
        kept_share = rng.random()
        torn_share = rng.choice((0.0, 0.2, 0.5))
        for operation in pending:
            if rng.random() < kept_share:
                yield operation
            elif isinstance(operation, Write) and rng.random() < torn_share:
                kept = rng.choice((_random_prefix, _random_range, _random_sectors))(rng, operation)
                yield from torn_parts(operation, kept, sized=rng.random() < 0.5)


def random_subset(rng: Random) -> RandomSubset:
    """Draw a strategy from ``rng``; equal draws give equal strategies."""
    return RandomSubset(rng.getrandbits(64))


def torn_parts(
    write: Write, kept: Iterable[tuple[int, int]], *, sized: bool = False
) -> list[PendingOperation]:
    """Return the parts of a write of which only the byte ranges ``kept`` survived."""
    parts: list[PendingOperation] = [
        write.part(start, end) for start, end in kept if write.data[start:end]
    ]
    if sized:
        parts.append(Extend(write.file, write.path, write.offset + len(write.data)))
    return parts


def sectors(write: Write, sector_bytes: int = SECTOR_BYTES) -> list[tuple[int, int]]:
    """Split a write into byte ranges that each lie in one sector of its file."""
    first_cut = sector_bytes - write.offset % sector_bytes
    cuts = [0, *range(first_cut, len(write.data), sector_bytes), len(write.data)]
    return list(pairwise(cuts))


def tear_points(write: Write, boundaries: Iterable[int] = ()) -> list[int]:
    """Return interesting numbers of bytes to keep of a write, sorted, each below its length.

    ``boundaries`` are positions in the write that have a meaning to its author (the end of a
    header, the start of the second frame). Each is included with its two neighbors.
    """
    size = len(write.data)
    points = {0, 1, 4, size // 2, size - 1}
    points.update(start for start, _ in sectors(write)[:3])
    points.update(near for at in boundaries for near in (at - 1, at, at + 1))
    return sorted(point for point in points if 0 <= point < size)


def last_write(pending: Sequence[PendingOperation]) -> int | None:
    """Return the index of the last write among the pending operations, or None."""
    writes = (index for index, item in enumerate(pending) if isinstance(item, Write))
    return max(writes, default=None)


def no_boundaries(_write: Write) -> Iterable[int]:
    """Return no boundaries, for writes with unknown content."""
    return ()


def interesting_survivors(
    pending: Sequence[PendingOperation],
    boundaries: Callable[[Write], Iterable[int]] = no_boundaries,
    *,
    singled_out_max: int = 32,
) -> Iterator[Survivors]:
    """Yield strategies for one crash point: none, all, only one, all but one, and torn writes.

    Only the newest ``singled_out_max`` operations are kept alone or lost alone, because older ones
    were among the newest at earlier crash points. For the same reason only the newest operation is
    torn, if it is a write.
    """
    yield nothing_survives
    count = len(pending)
    if count:
        yield everything_survives
    singled_out = range(max(0, count - singled_out_max), count)
    if count > 1:
        yield from map(Only, singled_out)
    if count > 2:  # With two operations, losing one is the same as keeping the other.
        yield from map(AllBut, singled_out)
    if count and isinstance(newest := pending[-1], Write):
        for kept_bytes in tear_points(newest, boundaries(newest)):
            yield TornLast(kept_bytes)
            yield TornLast(kept_bytes, sized=True)
        in_sectors = sectors(newest)
        if len(in_sectors) > 1:
            for lost in range(min(len(in_sectors), singled_out_max)):
                yield Torn(count - 1, (*in_sectors[:lost], *in_sectors[lost + 1 :]), sized=True)


def _random_prefix(rng: Random, write: Write) -> list[tuple[int, int]]:
    return [(0, rng.randrange(len(write.data)))]


def _random_range(rng: Random, write: Write) -> list[tuple[int, int]]:
    start = rng.randrange(len(write.data))
    return [(start, rng.randint(start, len(write.data)))]


def _random_sectors(rng: Random, write: Write) -> list[tuple[int, int]]:
    return [sector for sector in sectors(write) if rng.random() < 0.5]
