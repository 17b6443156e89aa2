"""Every point at which the power may fail during one run of a workload.

    workload(disk)
    for point in CrashExplorer(disk.journal, disk.start):
        for survivors in interesting_survivors(point.pending):
            judge(recover(point.crash(survivors)), point.notes)

Each step applies one operation, so all prefixes of a journal together cost one replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from escrowmq.testing.disk_image import EMPTY, DiskImage
from escrowmq.testing.disk_state import DiskState
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import JournalNote, Operation, PendingOperation
from escrowmq.testing.survivors import Survivors


class CrashExplorer:
    """The disk after a prefix of its journal, and the images that a power cut leaves there.

    Iterating yields the explorer itself, before the first operation and after each operation. Its
    state is valid until the next step.
    """

    def __init__(self, journal: Sequence[Operation], start: DiskImage = EMPTY) -> None:
        self._journal = journal
        self._state = DiskState(start)
        #: Number of operations applied: the length of the prefix.
        self.position = 0
        #: Notes of the marks among these operations, in order.
        self.notes: list[object] = []

    def __iter__(self) -> Iterator[CrashExplorer]:
        yield self
        while self.position < len(self._journal):
            self.step()
            yield self

    @property
    def last(self) -> Operation | None:
        """The last applied operation."""
        return self._journal[self.position - 1] if self.position else None

    @property
    def pending(self) -> tuple[PendingOperation, ...]:
        """Operations that a power cut may keep or lose, in their order."""
        return self._state.pending

    def step(self) -> None:
        """Apply the next operation."""
        operation = self._journal[self.position]
        self._state.apply(operation)
        if isinstance(operation, JournalNote):
            self.notes.append(operation.note)
        self.position += 1

    def advance_to(self, position: int) -> None:
        """Step forward to a prefix, such as one that a failed test printed."""
        if not self.position <= position <= len(self._journal):
            raise ValueError(f"cannot go from {self.position} to {position}")
        while self.position < position:
            self.step()

    def image(self) -> DiskImage:
        """Return the disk if the process dies here and the power stays on."""
        return self._state.image()

    def crash_image(self, survivors: Survivors) -> DiskImage:
        """Return the disk after a power cut here. A test needs to judge equal images only once."""
        return self._state.crash_image(survivors)

    def crash(self, survivors: Survivors) -> FaultyDisk:
        """Return a new disk with the content that a power cut leaves here."""
        return FaultyDisk(self.crash_image(survivors))
