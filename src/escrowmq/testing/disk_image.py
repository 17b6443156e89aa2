"""The content of a disk as a value: the result of a power cut, or the start of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from escrowmq.store.disk.disk import checked_path
from escrowmq.testing.journal import directory_of


@dataclass(frozen=True, slots=True)
class DiskImage:
    """Files with their content, and directories.

    Images share the content of equal files, so tens of thousands of images are cheap. They compare
    and hash by content, so a test can skip images that it has already judged.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    #: Without the root, which always exists.
    directories: frozenset[str] = frozenset()

    @classmethod
    def of(cls, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> DiskImage:
        """Make an image of these files and directories, and of all their parents."""
        parents = {parent for path in files for parent in parents_of(checked_path(path))}
        for path in directories:
            parents |= {checked_path(path), *parents_of(path)}
        return cls(dict(files), frozenset(parents - {""}))

    @classmethod
    def from_directory(cls, root: Path) -> DiskImage:
        """Make an image of the content of a real directory."""
        files: dict[str, bytes] = {}
        directories: list[str] = []
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_dir():
                directories.append(name)
            else:
                files[name] = path.read_bytes()
        return cls.of(files, directories)

    def to_directory(self, root: Path) -> None:
        """Write the image into a real directory, without removing other files."""
        for directory in ("", *sorted(self.directories)):
            (root / directory).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (root / path).write_bytes(content)

    def __hash__(self) -> int:
        return hash((frozenset(self.files.items()), self.directories))


EMPTY = DiskImage()


def parents_of(path: str) -> list[str]:
    """Return the directories above a path, nearest first, without the root."""
    parents = []
    while path := directory_of(path):
        parents.append(path)
    return parents
