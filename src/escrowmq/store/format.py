"""The file that says what a store is: its format version and what was chosen when it was made."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store import commit_log, queue_files, state_files

if TYPE_CHECKING:
    from escrowmq.store.disk import Disk

PATH = "format"
TEMPORARY = "format.tmp"
VERSION = 3
"""Version 2 has epochs in the log, version 3 topics, consumer groups and settings."""
READABLE = (1, 2, 3)
DIRECTORIES = (
    commit_log.DIRECTORY,
    queue_files.DIRECTORY,
    state_files.DIRECTORY,
    "keyindex",
)


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen once, when the store is made."""

    #: Of all files of the store, but for those that state one of their own.
    version: int
    #: Goes into every frame's checksum, so that no other store's frame passes for ours.
    seed: int
    #: Rows in a file of the state table.
    chunk_rows: int
    #: CRC-32 of the above: a store that is read by wrong numbers looks damaged all over.
    check: int


def chosen(seed: int, chunk_rows: int) -> Format:
    """The format of a store that is made today."""
    check = _check(VERSION, seed, chunk_rows)
    return Format(version=VERSION, seed=seed, chunk_rows=chunk_rows, check=check)


def _check(version: int, seed: int, chunk_rows: int) -> int:
    return crc32(f"{version} {seed} {chunk_rows}".encode())


def read_or_make(disk: Disk, chunk_rows: int) -> Format:
    """The store's format; an empty directory becomes a store."""
    if disk.exists(PATH):
        return read(disk)
    # One of our directories may be there, empty: a link to another volume.
    names = [
        name
        for name in disk.list("")
        if name != TEMPORARY and (name not in DIRECTORIES or disk.list(name))
    ]
    if names:
        raise StoreUnusable(
            "store_foreign",
            "this directory holds files but no store; give an empty one",
            names=names[:5],
        )
    made = chosen(secrets.randbits(32), chunk_rows)
    disk.make_directory("")
    _write(disk, made)
    return made


def upgrade(disk: Disk) -> None:
    """Let no program open the store that cannot read what this version writes."""
    found = read(disk)
    if found.version != VERSION:
        _write(disk, chosen(found.seed, found.chunk_rows))


def _write(disk: Disk, form: Format) -> None:
    file = disk.open(TEMPORARY, create=True)
    try:
        file.truncate(0)
        file.write_at(0, msgspec.json.encode(form))
        file.flush()
    finally:
        file.close()
    disk.rename(TEMPORARY, PATH)
    disk.flush_directory("")


def read(disk: Disk) -> Format:
    """The format of a store that is there."""
    file = disk.open(PATH)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    try:
        stated = msgspec.json.decode(data, type=dict)
        version = stated["version"]
        if version not in READABLE:
            raise StoreUnusable(
                "store_version_unknown",
                "a newer EscrowMQ made this store; use that one",
                version=version,
                known=VERSION,
            )
        found = msgspec.convert(stated, Format)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            "format_damaged", "restore the file from a backup", path=PATH, cause=str(error)
        ) from None
    if found.check != _check(found.version, found.seed, found.chunk_rows):
        raise StoreCorrupt(
            "format_damaged",
            "restore the file from a backup",
            path=PATH,
            cause="the checksum is wrong",
        )
    return found
