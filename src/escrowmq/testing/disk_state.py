"""The two views of a disk, page cache and durable content, and the result of a power cut.

Reads see the page cache, which contains every operation so far. Only flushed operations are
durable. The others are pending, and a power cut keeps any subset of them. The rules are the
strictest that POSIX allows. Flushing a new file makes its data durable but not its name. Pending
operations survive in any combination. After a failed flush the data is lost, though reads still
show it.

This module neither fails nor counts faults; ``FaultyDisk``, which has a ``DiskState``, does.
"""

from __future__ import annotations

from escrowmq.testing import journal
from escrowmq.testing.disk_image import DiskImage, parents_of
from escrowmq.testing.journal import (
    DataOperation,
    NameOperation,
    Operation,
    PendingOperation,
    apply_data,
    apply_name,
    directory_of,
)
from escrowmq.testing.survivors import Survivors, nothing_survives


class Inode:
    """A file without its name: visible content, durable content, and pending operations."""

    __slots__ = ("_durable", "file", "landed_writes", "path", "pending", "visible")

    def __init__(self, file: int, path: str, content: bytes = b"") -> None:
        self.file = file
        #: Its last name.
        self.path = path
        #: Shared with an image until the first change turns it into a bytearray.
        self.visible: bytes | bytearray = content
        self._durable = content
        #: Flushed operations, applied to ``_durable`` only when a power cut needs it.
        self.landed_writes: list[DataOperation] = []
        #: Keys of its data operations in ``DiskState._pending``.
        self.pending: list[int] = []

    def change(self, operation: DataOperation) -> None:
        """Apply the operation to the content that reads see."""
        if isinstance(self.visible, bytes):
            self.visible = bytearray(self.visible)
        apply_data(self.visible, operation)

    def durable(self) -> bytes:
        """Return the content that every power cut leaves."""
        if self.landed_writes:
            content = bytearray(self._durable)
            for operation in self.landed_writes:
                apply_data(content, operation)
            self._durable = bytes(content)
            self.landed_writes.clear()
        return self._durable


class DiskState:
    """Applies operations and makes images; depends only on the first image and the operations."""

    def __init__(self, image: DiskImage) -> None:
        # Number the files in the order of their names, so that a journal fits every equal image.
        self.inodes = {
            file: Inode(file, path, image.files[path])
            for file, path in enumerate(sorted(image.files))
        }
        self.names = {inode.path: file for file, inode in self.inodes.items()}
        self.directories = set(image.directories)
        self._durable_names = dict(self.names)
        self._pending: dict[int, PendingOperation] = {}
        self._pending_names: dict[str, list[int]] = {}
        self._last_key = 0

    @property
    def pending(self) -> tuple[PendingOperation, ...]:
        """Operations that a power cut may keep or lose, in their order."""
        return tuple(self._pending.values())

    def pending_of(self, inode: Inode) -> list[DataOperation]:
        """Return the data operations that wait for a flush of this file."""
        waiting = (self._pending[key] for key in inode.pending)
        return [item for item in waiting if isinstance(item, DataOperation)]

    def image(self) -> DiskImage:
        """Return what reads see, which remains if the process dies but the power stays on."""
        files = {path: bytes(self.inodes[file].visible) for path, file in self.names.items()}
        return DiskImage(files, frozenset(self.directories))

    def crash_image(self, survivors: Survivors = nothing_survives) -> DiskImage:
        """Return what a power cut leaves."""
        names = dict(self._durable_names)
        changed: dict[int, bytearray] = {}
        for operation in survivors(self.pending):
            if isinstance(operation, journal.Create | journal.Rename | journal.Remove):
                apply_name(names, operation)
                continue
            if operation.file not in changed:
                changed[operation.file] = bytearray(self.inodes[operation.file].durable())
            apply_data(changed[operation.file], operation)
        files = {
            path: bytes(changed[file]) if file in changed else self.inodes[file].durable()
            for path, file in names.items()
        }
        return DiskImage(files, frozenset(self.directories))

    def apply(self, operation: Operation) -> None:
        """Apply one operation."""
        match operation:
            case journal.Write() | journal.Truncate() | journal.Extend():
                inode = self.inodes[operation.file]
                inode.change(operation)
                inode.pending.append(self._wait(operation))
            case journal.Create() | journal.Rename() | journal.Remove():
                self._apply_name(operation)
            case journal.Flush():
                inode = self.inodes[operation.file]
                inode.landed_writes += self._take(inode)
            case journal.FlushFailed():
                inode = self.inodes[operation.file]
                self._take(inode)
                inode.landed_writes += operation.landed
            case journal.FlushDirectory():
                self._land_names(operation.path)
            case journal.MakeDirectory():
                self.directories.update((operation.path, *parents_of(operation.path)))
            case journal.FlipBit():
                self._flip(operation)
            case _:
                assert isinstance(operation, journal.JournalNote), operation

    def _wait(self, operation: PendingOperation) -> int:
        self._last_key += 1
        self._pending[self._last_key] = operation
        return self._last_key

    def _take(self, inode: Inode) -> list[DataOperation]:
        taken = self.pending_of(inode)
        for key in inode.pending:
            del self._pending[key]
        inode.pending.clear()
        return taken

    def _apply_name(self, operation: NameOperation) -> None:
        if isinstance(operation, journal.Create):
            self.inodes[operation.file] = Inode(operation.file, operation.path)
        elif isinstance(operation, journal.Rename):
            self.inodes[operation.file].path = operation.new_path
        apply_name(self.names, operation)
        directory = directory_of(operation.path)
        self._pending_names.setdefault(directory, []).append(self._wait(operation))

    def _land_names(self, directory: str) -> None:
        for key in self._pending_names.pop(directory, ()):
            operation = self._pending.pop(key)
            assert isinstance(operation, journal.Create | journal.Rename | journal.Remove)
            apply_name(self._durable_names, operation)

    def _flip(self, flip: journal.FlipBit) -> None:
        inode = self.inodes[flip.file]
        mask = 1 << flip.bit
        inode.change(_flipped(bytes(inode.visible), flip, mask))
        durable = inode.durable()
        if flip.offset < len(durable):
            inode.landed_writes.append(_flipped(durable, flip, mask))
        # A pending write would restore the undamaged byte.
        for key in inode.pending:
            write = self._pending[key]
            if isinstance(write, journal.Write) and 0 <= flip.offset - write.offset < len(
                write.data
            ):
                data = bytearray(write.data)
                data[flip.offset - write.offset] ^= mask
                self._pending[key] = journal.Write(
                    write.file, write.path, write.offset, bytes(data)
                )


def _flipped(content: bytes, flip: journal.FlipBit, mask: int) -> journal.Write:
    return journal.Write(flip.file, flip.path, flip.offset, bytes([content[flip.offset] ^ mask]))
