"""Names in a directory that the file system or a desktop made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that file systems and desktops create in directories on their own.
_OF_FILE_SYSTEMS = frozenset(
    {
        "lost+found",
        ".snapshot",
        ".snapshots",
        ".zfs",
        ".DS_Store",
        ".Trashes",
        ".Spotlight-V100",
        ".fseventsd",
        ".TemporaryItems",
        ".directory",
    }
)
#: Prefixes of files deleted while open (NFS, FUSE), of attributes on a Mac, of a desktop's trash.
_PREFIXES_OF_FILE_SYSTEMS = (".nfs", ".fuse_hidden", "._", ".Trash-")


def listed(names: Iterable[str]) -> list[str]:
    """Return these names, sorted, without those that the file system or a desktop made."""
    return sorted(
        name
        for name in names
        if not (name in _OF_FILE_SYSTEMS or name.startswith(_PREFIXES_OF_FILE_SYSTEMS))
    )
