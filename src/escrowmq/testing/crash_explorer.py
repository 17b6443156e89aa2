"""Every moment at which the power may fail, from one run of a workload.

    workload(disk)
    for point in CrashExplorer(disk.journal, disk.start):
        for survivors in interesting_survivors(point.pending):
            judge(recover(point.crash(survivors)), point.notes)

Each step does one operation, so all prefixes of a journal together cost one replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from escrowmq.testing.disk_image import EMPTY, DiskImage
from escrowmq.testing.disk_state import DiskState
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import Mark, Operation, PendingOperation
from escrowmq.testing.survivors import Survivors


class CrashExplorer:
    """The disk as of a prefix of its journal, and the images that a power cut would leave there.

    Iterating gives the explorer itself, before the first operation and after each of them; it is
    good until the next step.
    """

    def __init__(self, journal: Sequence[Operation], start: DiskImage = EMPTY) -> None:
        self._journal = journal
        self._state = DiskState(start)
        #: How many operations were done: the length of the prefix.
        self.position = 0
        #: The marks among them, in order.
        self.notes: list[object] = []

    def __iter__(self) -> Iterator[CrashExplorer]:
        yield self
        while self.position < len(self._journal):
            self.step()
            yield self

    @property
    def last(self) -> Operation | None:
        """The operation done last."""
        return self._journal[self.position - 1] if self.position else None

    @property
    def pending(self) -> tuple[PendingOperation, ...]:
        """What a power cut may keep or lose, in the order in which it was done."""
        return self._state.pending

    def step(self) -> None:
        """Do the next operation."""
        operation = self._journal[self.position]
        self._state.apply(operation)
        if isinstance(operation, Mark):
            self.notes.append(operation.note)
        self.position += 1

    def advance_to(self, position: int) -> None:
        """Step forward to a prefix, for instance the one that a failed test has printed."""
        if not self.position <= position <= len(self._journal):
            raise ValueError(f"cannot go from {self.position} to {position}")
        while self.position < position:
            self.step()

    def image(self) -> DiskImage:
        """What is there if the process dies here and the power stays."""
        return self._state.image()

    def crash_image(self, survivors: Survivors) -> DiskImage:
        """What a power cut leaves here; equal ones need to be judged only once."""
        return self._state.crash_image(survivors)

    def crash(self, survivors: Survivors) -> FaultyDisk:
        """A fresh disk as a power cut leaves it here."""
        return FaultyDisk(self.crash_image(survivors))
