"""Cuts the power everywhere: derives from one run every disk a crash could leave, and judges each.

A ``Case`` names a disk: how many operations were done, and which of the unflushed ones survived. It
prints both; pass them to ``Exploration.case`` to make the disk again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from escrowmq.store.log.frames import HEAD_BYTES, MAGIC
from escrowmq.store.recovery.recovery import RecoveryResult, open_store
from escrowmq.store.store import Store
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import Write
from escrowmq.testing.survivors import (
    Survivors,
    everything_survives,
    interesting_survivors,
    nothing_survives,
    random_subset,
)
from tests.crash.driver import Acked, Driver, Flushed, Retained, Retaining, Tried
from tests.crash.judge import Starts, judge, must_look_alike, picture, starts_of
from tests.crash.model import HOST, Wrong
from tests.crash.state_stores import let_go

PROJECTIONS = ("statetable/", "consumequeue/", "keyindex/")


class Bounds(NamedTuple):
    """What a crash may leave."""

    #: The store must have at least this many commands ...
    low: int
    #: ... and at most this many.
    high: int
    starts: tuple[Starts, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One disk that a crash could leave."""

    position: int
    survivors: Survivors
    image: DiskImage
    bounds: Bounds

    def __repr__(self) -> str:
        name = getattr(self.survivors, "__name__", repr(self.survivors))
        return f"after {self.position} operations, {name}"


class Tally:
    """Counts of what was judged."""

    def __init__(self) -> None:
        self.points = 0
        self.images = 0
        self.repeated = 0

    def __repr__(self) -> str:
        return f"{self.points} crash points, {self.images} images, {self.repeated} seen before"


class Exploration:
    """Every crash of one driver's run."""

    def __init__(self, driver: Driver, *, seed: int = 0) -> None:
        self.driver = driver
        self.history = driver.history
        self.seed = seed
        self.tally = Tally()
        #: Judged images, and where the log ended in each.
        self._judged: dict[DiskImage, int] = {}
        #: Stores of the case that is judged now.
        self._opened: list[Store] = []

    # The disks.

    def cases(
        self, positions: Iterable[int] | None = None, *, most: int | None = None, subsets: int = 0
    ) -> Iterator[Case]:
        """Yield every disk, or at most `most` for each of these positions, drawn by the seed."""
        explorer = CrashExplorer(self.driver.disk.journal, self.driver.disk.start)
        wanted = range(len(self.driver.disk.journal) + 1) if positions is None else positions
        for position in wanted:
            explorer.advance_to(position)
            self.tally.points += 1
            # One generator per position, so that the draws for one position do not depend on the
            # others.
            rng = Random(self.seed * 1_000_003 + position)
            choices = list(interesting_survivors(explorer.pending, boundaries))
            if len(explorer.pending) > 1:
                choices += [random_subset(rng) for _ in range(subsets)]
            if most is not None and len(choices) > most:
                choices = rng.sample(choices, most)
            for survivors in choices:
                image = explorer.crash_image(survivors)
                bounds = self.bounds(explorer.notes, killed=survivors is everything_survives)
                yield Case(position, survivors, image, bounds)

    def case(self, position: int, survivors: Survivors = nothing_survives) -> Case:
        """Make one disk, as a failure printed it."""
        explorer = CrashExplorer(self.driver.disk.journal, self.driver.disk.start)
        explorer.advance_to(position)
        bounds = self.bounds(explorer.notes, killed=survivors is everything_survives)
        return Case(position, survivors, explorer.crash_image(survivors), bounds)

    def bounds(self, notes: Sequence[object], *, killed: bool) -> Bounds:
        """Return what clients may expect after these notes."""
        waits = self.driver.config.durability == "fsync"
        low, high, starts = 0, 0, [self.driver.starts[0]]
        for note in notes:
            if isinstance(note, Tried):
                high = note.count
            elif isinstance(note, Acked):
                # An answer that did not wait for the flush survives a kill, but not a power cut.
                low = note.count if waits or killed else low
            elif isinstance(note, Flushed):
                low = note.count
            elif isinstance(note, Retaining) and note.number < len(self.driver.starts):
                starts.append(self.driver.starts[note.number])
            elif isinstance(note, Retained):
                starts = [self.driver.starts[note.number]]
        return Bounds(low, max(low, high), tuple(starts))

    # Judging one disk.

    def judge(
        self, case: Case, *, twice: bool = False, go_on: bool = False, rebuild: bool = False
    ) -> FaultyDisk | None:
        """Recover and compare; return the recovered disk, or None if it was judged before."""
        known = self._judged.get(case.image)
        if known is not None:
            self.tally.repeated += 1
            self._count(case, known)
            return None
        self.tally.images += 1
        disk = FaultyDisk(case.image)
        try:
            self._judge(case, disk, twice=twice, go_on=go_on, rebuild=rebuild)
        finally:
            for store in self._opened:
                let_go(store)
            self._opened.clear()
        return disk

    def _judge(
        self, case: Case, disk: FaultyDisk, *, twice: bool, go_on: bool, rebuild: bool
    ) -> None:
        store, _ = self.open(disk)
        self._judged[case.image] = store.recovered_at
        count = self._count(case, store.recovered_at)
        judge(store, self.history.worlds[count], case.bounds.starts)
        if twice:
            self._judge_twice(case, disk, store, count)
        if rebuild:
            self._judge_rebuilt(case, store, count)
        if go_on:
            self._judge_going_on(case, count)

    def open(self, disk: FaultyDisk) -> tuple[Store, RecoveryResult]:
        """Recover the store."""
        store, found = open_store(disk, self.driver.config, self.driver.policy, HOST)
        self._opened.append(store)
        return store, found

    def _count(self, case: Case, log_end: int) -> int:
        """Count the commands in a recovered store, and check the count against the bounds."""
        low, high, _ = case.bounds
        count = self.history.count_in(log_end)
        while count > high and not self.history.steps[count - 1].decision.records:
            count -= 1
        if not low <= count <= high:
            raise Wrong(f"{count} commands are there; {low} were answered, {high} were tried")
        return count

    def _judge_twice(self, case: Case, disk: FaultyDisk, store: Store, count: int) -> None:
        """A second recovery, after a kill or a power cut, changes nothing."""
        before = picture(store)
        for again in (disk, disk.crash(nothing_survives)):
            other, found = self.open(again)
            must_look_alike(before, picture(other))
            judge(other, self.history.worlds[count], [starts_of(store)])
            if found.cut_bytes:
                raise Wrong(f"the second recovery cut {found.cut_bytes} bytes of {case!r}")

    def _judge_rebuilt(self, case: Case, store: Store, count: int) -> None:
        """Everything but the log and the checkpoint can be rebuilt."""
        files = {
            path: content
            for path, content in case.image.files.items()
            if not path.startswith(PROJECTIONS)
        }
        other, _ = self.open(FaultyDisk(DiskImage(files, case.image.directories)))
        judge(other, self.history.worlds[count], [starts_of(store)], rebuilt=True)

    def _judge_going_on(self, case: Case, count: int) -> None:
        """A recovered store works: it takes commands, keeps them and recovers again."""
        driver = Driver(
            FaultyDisk(case.image),
            self.driver.config,
            self.driver.policy,
            self.history.until(count),
        )
        driver.starts = [starts_of(driver.store)]
        driver.acked = count
        driver.catch_up()
        driver.clock.set(max(driver.world.at_ms, driver.clock.now_ms()))
        live_on(driver)
        let_go(driver.store)


def live_on(driver: Driver) -> None:
    """Run a few more commands, retention first: it must not delete too much."""
    driver.retain()
    driver.judge()
    driver.append(driver.message(), driver.message(("stock", 0)))
    row = driver.prepare(driver.message(), driver.message(("stock", 0)))
    for transaction in driver.open_transactions()[:3]:
        driver.check(transaction.head)
        driver.commit(transaction.rows[-1])
    driver.sync()
    driver.commit(row)
    driver.sync()
    driver.judge()
    driver.clock.advance(seconds=70)
    driver.append(driver.message(size=4_000))
    driver.release()
    driver.sync()
    driver.retain()
    driver.judge()
    driver.disk = driver.disk.crash(nothing_survives)
    driver.kill()
    driver.judge()


def boundaries(write: Write) -> list[int]:
    """Return where frames begin in a write, and where their heads end."""
    found = []
    if write.path.startswith("commitlog/"):
        at = write.data.find(MAGIC)
        while at >= 0:
            found += [at, at + HEAD_BYTES]
            at = write.data.find(MAGIC, at + 1)
    return found
