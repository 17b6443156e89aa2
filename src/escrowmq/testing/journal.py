"""Operations of a disk as values: a test rebuilds the disk as of any moment from the journal.

A file is identified by its number, which a rename does not change. ``path`` is its name at that
moment, for readers. Data operations (``Write``, ``Truncate``, ``Extend``) are pending until a flush
of their file, and name operations (``Create``, ``Rename``, ``Remove``) until a flush of their
directory. A power cut may keep or lose each pending operation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OnFile:
    """Base of the operations on one file, and its path at that time."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class Write(OnFile):
    """Bytes written to a file."""

    offset: int
    data: bytes

    def part(self, start: int, end: int) -> Write:
        """Return a write of only the bytes ``[start, end)``, as a torn write leaves them."""
        return Write(self.file, self.path, self.offset + start, self.data[start:end])


@dataclass(frozen=True, slots=True)
class Truncate(OnFile):
    """A file cut to ``size`` bytes, or extended to it with zeros."""

    size: int


@dataclass(frozen=True, slots=True)
class Extend(OnFile):
    """A file extended to at least ``size`` bytes: a write's size survived, but not its data.

    Never in a journal. Survivors may replace a write with it.
    """

    size: int


@dataclass(frozen=True, slots=True)
class Create(OnFile):
    """A new, empty file under a name."""


@dataclass(frozen=True, slots=True)
class Rename(OnFile):
    """A file renamed within its directory, replacing a file with the new name."""

    new_path: str


@dataclass(frozen=True, slots=True)
class Remove(OnFile):
    """A name removed."""


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory made with its parents, durable immediately."""

    path: str


@dataclass(frozen=True, slots=True)
class Flush(OnFile):
    """All data operations of a file so far made durable."""


@dataclass(frozen=True, slots=True)
class FlushFailed(OnFile):
    """A flush that reported an error.

    As on Linux, the pages count as clean afterwards: reads still show them, but no later flush
    writes them. ``landed`` are the operations that reached the disk before the error.
    """

    landed: tuple[DataOperation, ...] = ()


@dataclass(frozen=True, slots=True)
class FlushDirectory:
    """All name operations in a directory so far made durable."""

    path: str


@dataclass(frozen=True, slots=True)
class FlipBit(OnFile):
    """One bit flipped, in the content on the disk and in what reads see."""

    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class JournalNote:
    """A note from the caller, such as "command 17 was acknowledged here"."""

    note: object


DataOperation = Write | Truncate | Extend
NameOperation = Create | Rename | Remove
PendingOperation = DataOperation | NameOperation
Operation = (
    PendingOperation | MakeDirectory | Flush | FlushFailed | FlushDirectory | FlipBit | JournalNote
)


def apply_data(content: bytearray, operation: DataOperation) -> None:
    """Apply a data operation to the content of its file."""
    if isinstance(operation, Write):
        _grow(content, operation.offset)
        end = operation.offset + len(operation.data)
        content[operation.offset : end] = operation.data
        return
    if isinstance(operation, Truncate):
        del content[operation.size :]
    _grow(content, operation.size)


def apply_name(names: dict[str, int], operation: NameOperation) -> None:
    """Apply a name operation to ``names`` (path to file)."""
    if isinstance(operation, Create):
        names[operation.path] = operation.file
    elif isinstance(operation, Remove):
        names.pop(operation.path, None)
    else:
        # Remove any name of the file, because the power cut may have lost an earlier rename.
        for path in [path for path, file in names.items() if file == operation.file]:
            del names[path]
        names[operation.new_path] = operation.file


def directory_of(path: str) -> str:
    """Return the directory of a path; "" is the root."""
    return path.rpartition("/")[0]


def _grow(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))
