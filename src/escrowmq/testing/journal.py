"""What a disk did, as values: the journal from which a test rebuilds it as of any moment.

A file is known by its number, which it keeps when it is renamed; ``path`` is its name at that
moment and is there for the reader.  Data operations (``Write``, ``Truncate``, ``Extend``) wait for
a flush of their file, name operations (``Create``, ``Rename``, ``Remove``) for a flush of their
directory; until then a power cut may keep or lose each of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put into a file."""

    file: int
    path: str
    offset: int
    data: bytes

    def part(self, start: int, end: int) -> Write:
        """Only the bytes ``[start, end)`` of it, as when the write was torn."""
        return Write(self.file, self.path, self.offset + start, self.data[start:end])


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file cut, or filled up with zeros, to ``size`` bytes."""

    file: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Extend:
    """A file of at least ``size`` bytes: the size of a write survived, its data did not.

    Never in a journal; survivors may put it in the place of a write.
    """

    file: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Create:
    """A new, empty file under a name."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A file moved to another name in its directory, replacing what had that name."""

    file: int
    path: str
    new_path: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A name taken away."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory with its parents, durable at once."""

    path: str


@dataclass(frozen=True, slots=True)
class Flush:
    """All data operations so far of a file made durable."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """A flush that reported an error.

    As on Linux, the pages count as clean from then on: reads still show them, and no later flush
    writes them.  ``landed`` is what reached the disk before the error.
    """

    file: int
    path: str
    landed: tuple[DataOperation, ...] = ()


@dataclass(frozen=True, slots=True)
class FlushDirectory:
    """All name operations so far in a directory made durable."""

    path: str


@dataclass(frozen=True, slots=True)
class FlipBit:
    """One bit changed, in what is on the disk and in what reads see."""

    file: int
    path: str
    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A note of the caller, such as "command 17 was acknowledged here"."""

    note: object


DataOperation = Write | Truncate | Extend
NameOperation = Create | Rename | Remove
PendingOperation = DataOperation | NameOperation
Operation = PendingOperation | MakeDirectory | Flush | FlushFailed | FlushDirectory | FlipBit | Mark


def apply_data(content: bytearray, operation: DataOperation) -> None:
    """Do to ``content`` what the operation does to its file."""
    if isinstance(operation, Write):
        _grow(content, operation.offset)
        end = operation.offset + len(operation.data)
        content[operation.offset : end] = operation.data
        return
    if isinstance(operation, Truncate):
        del content[operation.size :]
    _grow(content, operation.size)


def apply_name(names: dict[str, int], operation: NameOperation) -> None:
    """Do to ``names`` (path to file) what the operation does to its directory."""
    if isinstance(operation, Create):
        names[operation.path] = operation.file
    elif isinstance(operation, Remove):
        names.pop(operation.path, None)
    else:
        # Whatever name the file had: an earlier rename of it may be among the lost.
        for path in [path for path, file in names.items() if file == operation.file]:
            del names[path]
        names[operation.new_path] = operation.file


def directory_of(path: str) -> str:
    """The directory in which the name is; "" is the root."""
    return path.rpartition("/")[0]


def _grow(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))
