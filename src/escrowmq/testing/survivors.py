"""Who survives a power cut: strategies over the operations that were not yet flushed.

A strategy gets all pending operations of a disk, in the order in which they were done, and returns
those that reached it, in that order.  A torn write is replaced by its surviving parts.  Strategies
with a parameter are values, so that a failed test prints how to see it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from escrowmq.testing.journal import Extend, PendingOperation, Write

Survivors = Callable[[Sequence[PendingOperation]], Iterable[PendingOperation]]

#: What a disk writes in one piece; the parts of a write in different sectors have no order.
SECTOR_BYTES = 512


def nothing_survives(_pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """Only what was flushed is there."""
    return ()


def everything_survives(pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
    """The system had written all of it back by itself."""
    return pending


@dataclass(frozen=True, slots=True)
class Only:
    """One pending operation survives, all others are lost."""

    index: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        return (pending[self.index],)


@dataclass(frozen=True, slots=True)
class AllBut:
    """One pending operation is lost, all others survive."""

    index: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        return (*pending[: self.index], *pending[self.index + 1 :])


@dataclass(frozen=True, slots=True)
class First:
    """The first ``count`` survive: an orderly disk."""

    count: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        return pending[: self.count]


@dataclass(frozen=True, slots=True)
class Torn:
    """Of one pending write the byte ranges ``kept`` survive; all other operations survive whole.

    With ``sized`` the file is as long as if the whole write had survived: what is missing beyond
    its old end reads as zeros.
    """

    index: int
    kept: tuple[tuple[int, int], ...]
    sized: bool = False

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        write = pending[self.index]
        assert isinstance(write, Write), write
        parts = torn_parts(write, self.kept, sized=self.sized)
        return (*pending[: self.index], *parts, *pending[self.index + 1 :])


@dataclass(frozen=True, slots=True)
class TornLast:
    """Of the last pending write the first ``kept_bytes`` survive; all else survives whole."""

    kept_bytes: int
    sized: bool = False

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        index = last_write(pending)
        if index is None:
            return pending
        return Torn(index, ((0, self.kept_bytes),), self.sized)(pending)


@dataclass(frozen=True, slots=True)
class RandomSubset:
    """Each operation survives, is lost, or is torn, by the seed."""

    seed: int

    def __call__(self, pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        """What survives of these."""
        rng = Random(self.seed)
        # From "hardly anything" to "nearly everything": an even share would hide both.
        kept_share = rng.random()
        torn_share = rng.choice((0.0, 0.2, 0.5))
        for operation in pending:
            if rng.random() < kept_share:
                yield operation
            elif isinstance(operation, Write) and rng.random() < torn_share:
                kept = rng.choice((_random_prefix, _random_range, _random_sectors))(rng, operation)
                yield from torn_parts(operation, kept, sized=rng.random() < 0.5)


def random_subset(rng: Random) -> RandomSubset:
    """A strategy drawn from ``rng``; equal draws give equal strategies."""
    return RandomSubset(rng.getrandbits(64))


def torn_parts(
    write: Write, kept: Iterable[tuple[int, int]], *, sized: bool = False
) -> list[PendingOperation]:
    """What is left of a write of which only the byte ranges ``kept`` survived."""
    parts: list[PendingOperation] = [
        write.part(start, end) for start, end in kept if write.data[start:end]
    ]
    if sized:
        parts.append(Extend(write.file, write.path, write.offset + len(write.data)))
    return parts


def sectors(write: Write, sector_bytes: int = SECTOR_BYTES) -> list[tuple[int, int]]:
    """The byte ranges of a write that lie in one sector of its file each."""
    first_cut = sector_bytes - write.offset % sector_bytes
    cuts = [0, *range(first_cut, len(write.data), sector_bytes), len(write.data)]
    return list(pairwise(cuts))


def tear_points(write: Write, boundaries: Iterable[int] = ()) -> list[int]:
    """Interesting numbers of bytes to keep of a write, sorted, each below its length.

    ``boundaries`` are positions in the write that mean something to its author (the end of a
    header, the start of the second frame); each is taken with its neighbours.
    """
    size = len(write.data)
    points = {0, 1, 4, size // 2, size - 1}
    points.update(start for start, _ in sectors(write)[:3])
    points.update(near for at in boundaries for near in (at - 1, at, at + 1))
    return sorted(point for point in points if 0 <= point < size)


def last_write(pending: Sequence[PendingOperation]) -> int | None:
    """Where the last write is among the pending operations."""
    writes = (index for index, item in enumerate(pending) if isinstance(item, Write))
    return max(writes, default=None)


def no_boundaries(_write: Write) -> Iterable[int]:
    """For writes of which nothing is known."""
    return ()


def interesting_survivors(
    pending: Sequence[PendingOperation],
    boundaries: Callable[[Write], Iterable[int]] = no_boundaries,
    *,
    singled_out_max: int = 32,
) -> Iterator[Survivors]:
    """Strategies to try at one crash point: the ends, one against all, and tears.

    The newest ``singled_out_max`` operations are tried alone and left out alone; older ones were
    among the newest at earlier crash points.  Tears are of the newest operation only, if it is a
    write, for the same reason.
    """
    yield nothing_survives
    count = len(pending)
    if count:
        yield everything_survives
    singled_out = range(max(0, count - singled_out_max), count)
    if count > 1:
        yield from map(Only, singled_out)
    if count > 2:  # Of two, leaving out one is keeping the other.
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
