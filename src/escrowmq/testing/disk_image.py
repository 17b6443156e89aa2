"""The content of a disk at rest, as a value: what a power cut leaves, what a test starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from escrowmq.store.disk import checked_path
from escrowmq.testing.journal import directory_of


@dataclass(frozen=True, slots=True)
class DiskImage:
    """Files with their content, and directories.

    Images share the content of files in which they do not differ, so that tens of thousands of
    them are cheap; they compare and hash by content, so that a test can leave out those that it
    has judged before.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    #: Without the root, which is always there.
    directories: frozenset[str] = frozenset()

    @classmethod
    def of(cls, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> DiskImage:
        """These files, these directories, and all parents of both."""
        parents = {parent for path in files for parent in parents_of(checked_path(path))}
        for path in directories:
            parents |= {checked_path(path), *parents_of(path)}
        return cls(dict(files), frozenset(parents - {""}))

    @classmethod
    def from_directory(cls, root: Path) -> DiskImage:
        """What is below a real directory."""
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
        """Put it below a real directory, beside what is there."""
        for directory in ("", *sorted(self.directories)):
            (root / directory).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (root / path).write_bytes(content)

    def __hash__(self) -> int:
        return hash((frozenset(self.files.items()), self.directories))


EMPTY = DiskImage()


def parents_of(path: str) -> list[str]:
    """The directories above a path, nearest first, without the root."""
    parents = []
    while path := directory_of(path):
        parents.append(path)
    return parents
