"""Backups of a store, taken while a broker writes to it, and data directories restored from them.

The log is append-only and its projections can be rebuilt from it. So a backup holds the newest
checkpoint, the log that it needs up to the log's end at one moment, and ``meta.db`` of that moment.
An open file stays readable after its name is deleted, so retention may run meanwhile. The backup
may hold only half of a batch in flight: a store opened from it finds a torn tail, which was never
acknowledged. ADR-0020 has the proof. The checkpoint in the copy says that all projections must be
rebuilt.

    manifest.json      paths, sizes and SHA-256 of the files; written last, so a backup that has
                       one is complete
    meta.db            as SQLite copies it
    store/format, store/checkpoint, store/commitlog/...
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt, StoreUnusable, Unavailable
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.disk.disk import on_error, read_whole
from escrowmq.store.log.commit_log import DIRECTORY, segment_path
from escrowmq.store.recovery import format as formats

if TYPE_CHECKING:
    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.disk.disk import Disk, File

MANIFEST = "manifest.json"
TEMPORARY = "manifest.tmp"
META = "meta.db"
STORE = "store"
VERSION = 1
REBUILD = "a backup holds the log alone"
BLOCK_BYTES = 1024 * 1024
#: Attempts to open a consistent set of files while retention deletes some of them.
ATTEMPTS_MAX = 10

_SEGMENT = re.compile(r"[0-9]{20}")
_OURS = re.compile(rf"meta\.db|store/(format|checkpoint|{DIRECTORY}/[0-9]{{20}})")


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    path: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Table of contents of a backup."""

    version: int
    made_at_ms: int
    #: The EscrowMQ release that made the backup.
    release: str
    #: The backup holds the log range ``[log_start, log_end)``; its tail may be torn.
    log_start: int
    log_end: int
    files: list[BackupFile]

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.bytes for file in self.files)


class Pinned(msgspec.Struct, kw_only=True):
    """A store at one moment, as open files, which stay readable after their names are deleted."""

    checkpoint: Checkpoint | None
    format: File
    #: By the start of each segment: its file, and how many of the bytes belong to the log.
    segments: dict[int, tuple[File, int]]

    @property
    def log_start(self) -> int:
        """Log offset where its log begins."""
        return min(self.segments, default=0)

    @property
    def log_end(self) -> int:
        """Log offset up to which its log was written."""
        return max((start + size for start, (_, size) in self.segments.items()), default=0)

    def close(self) -> None:
        """Close all files."""
        self.format.close()
        for file, _ in self.segments.values():
            file.close()


def pin(disk: Disk) -> Pinned:
    """Open the files that a backup of this store needs, all as of one moment.

    The checkpoint is read first, so that the log is at least as long as the checkpoint says.
    """
    if not disk.exists(formats.PATH):
        raise StoreUnusable("store_missing", "there is no store in this directory")
    for _ in range(ATTEMPTS_MAX):
        # A file may vanish before it is opened: checkpoints are renamed, old segments deleted.
        with suppress(FileNotFoundError):
            pinned = _try_to_pin(disk)
            if pinned is not None:
                return pinned
    raise Unavailable(
        "backup_overtaken", "retention deleted the start of the log during the backup; try again"
    )


def _try_to_pin(disk: Disk) -> Pinned | None:
    checkpoint = checkpoints.load(disk, checkpoints.PATH)
    if checkpoint is None:
        checkpoint = checkpoints.load(disk, checkpoints.PREVIOUS)
    log_start = 0 if checkpoint is None else checkpoint.log_start
    starts = [int(name) for name in disk.list(DIRECTORY) if _SEGMENT.fullmatch(name)]
    while len(starts) > 1 and starts[1] <= log_start:
        del starts[0]
    pinned = Pinned(checkpoint=checkpoint, format=disk.open(formats.PATH), segments={})
    with on_error(pinned.close):
        for start, next_start in zip_longest(starts, starts[1:]):
            file = disk.open(segment_path(start))
            pinned.segments[start] = file, 0
            size = file.size()
            if next_start is not None:
                # A start after a crash rewrites the tail in a new segment, which overlaps this one.
                size = min(size, next_start - start)
            pinned.segments[start] = file, size
    if checkpoint is not None and pinned.segments and pinned.log_start > log_start:
        # A newer checkpoint has let retention delete log that this checkpoint needs.
        pinned.close()
        return None
    return pinned


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Room that a copy must find on its disk before it begins, and leave while it goes on."""

    #: Bytes that stay free: below these, a broker on the same disk refuses messages.
    free_bytes_min: int = 0
    #: How many copies of the data there must be room for.
    copies: int = 1

    def check(self, target: Disk, needed_bytes: int) -> None:
        """Refuse to write so much if too little would stay free."""
        free_bytes = target.free_bytes()
        if free_bytes - needed_bytes < self.free_bytes_min:
            raise StoreUnusable(
                "backup_no_room",
                "make room on the disk of the copy, or name a directory on another disk",
                needed_bytes=needed_bytes,
                free_bytes=free_bytes,
                free_bytes_min=self.free_bytes_min,
            )


ENOUGH = Room()
"""Demands room for one copy, even if the copy leaves nothing free."""


def take(
    source: Disk,
    target: Disk,
    meta: Callable[[], File],
    *,
    now_ms: int,
    release: str,
    room: Room = ENOUGH,
) -> Manifest:
    """Copy the store on ``source`` into ``target``, an empty directory; durable when it returns.

    ``meta`` opens a copy of meta.db that no longer changes. It is called after the log's end is
    known, so that the copy holds every topic of the log.
    """
    refuse_unless_empty(target)
    with closing(pin(source)) as pinned, closing(meta()) as tables:
        target.make_directory(f"{STORE}/{DIRECTORY}")
        size_all = tables.size() + sum(size for _, size in pinned.segments.values())
        room.check(target, size_all * room.copies)
        files = [_copied(tables, tables.size(), target, META, room)]
        files.append(_copied(pinned.format, pinned.format.size(), target, f"{STORE}/format", room))
        for start, (file, size) in pinned.segments.items():
            files.append(_copied(file, size, target, f"{STORE}/{segment_path(start)}", room))
        if pinned.checkpoint is not None:
            anew = pinned.checkpoint.with_files(rebuild=REBUILD)
            files.append(_written(target, f"{STORE}/checkpoint", checkpoints.encode(anew)))
        manifest = Manifest(
            version=VERSION,
            made_at_ms=now_ms,
            release=release,
            log_start=pinned.log_start,
            log_end=pinned.log_end,
            files=files,
        )
    for directory in (f"{STORE}/{DIRECTORY}", STORE, ""):
        target.flush_directory(directory)
    _written(target, TEMPORARY, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    target.rename(TEMPORARY, MANIFEST)
    target.flush_directory("")
    return manifest


def refuse_unless_empty(target: Disk) -> None:
    """Raise if the directory holds anything, so that no existing file is overwritten."""
    if names := target.list(""):
        raise StoreUnusable(
            "target_not_empty", "name a directory that is new or empty", holds=names[:5]
        )


def read_manifest(backup: Disk) -> Manifest:
    """Read the manifest; raise if it is missing, damaged or of another version."""
    if not backup.exists(MANIFEST):
        raise StoreUnusable(
            "backup_incomplete", "there is no manifest: this is not a backup, or it is incomplete"
        )
    data = read_whole(backup, MANIFEST)
    try:
        stated = msgspec.json.decode(data)
        version = stated["version"]
        if version != VERSION:
            raise StoreUnusable(
                "backup_version_unknown", "use the release that made it", version=version
            )
        manifest = msgspec.convert(stated, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise _damaged(MANIFEST, str(error)) from None
    for stated_file in manifest.files:
        if not _OURS.fullmatch(stated_file.path):
            raise _damaged(MANIFEST, f"{stated_file.path[:64]!r} is not a file of ours")
    return manifest


def verify(backup: Disk) -> Manifest:
    """Read the whole backup and compare it with its manifest."""
    manifest = read_manifest(backup)
    for file in manifest.files:
        for _ in _verified(backup, file):
            pass
    return manifest


def restore(backup: Disk, target: Disk, *, room: Room = ENOUGH) -> Manifest:
    """Restore a backup into an empty directory; durable when it returns, raises on damage."""
    manifest = read_manifest(backup)
    refuse_unless_empty(target)
    target.make_directory(f"{STORE}/{DIRECTORY}")
    room.check(target, manifest.size)
    for file in manifest.files:
        _write_blocks(target, file.path, _verified(backup, file), room)
    for directory in (f"{STORE}/{DIRECTORY}", STORE, ""):
        target.flush_directory(directory)
    return manifest


def _blocks(file: File, size: int) -> Iterator[bytes]:
    for offset in range(0, size, BLOCK_BYTES):
        yield file.read_at(offset, min(BLOCK_BYTES, size - offset))


def _digested(blocks: Iterable[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    for block in blocks:
        digest.update(block)
        yield block


def _write_blocks(target: Disk, path: str, blocks: Iterable[bytes], room: Room) -> int:
    """Write and flush a new file; return its size."""
    offset = 0
    with closing(target.open(path, create=True)) as copy:
        for block in blocks:
            # Check before each block: others write to this disk while the copy is made.
            room.check(target, len(block))
            copy.write_at(offset, block)
            offset += len(block)
        copy.flush()
    return offset


def _verified(backup: Disk, stated: BackupFile) -> Iterator[bytes]:
    """Yield a file's blocks; raise after the last one if the size or checksum is wrong."""
    if not backup.exists(stated.path):
        raise _damaged(stated.path, "it is missing")
    digest = hashlib.sha256()
    with closing(backup.open(stated.path)) as file:
        yield from _digested(_blocks(file, stated.bytes), digest)
        if file.size() != stated.bytes or digest.hexdigest() != stated.sha256:
            raise _damaged(stated.path, "its bytes changed after it was written")


def _copied(file: File, size: int, target: Disk, path: str, room: Room) -> BackupFile:
    digest = hashlib.sha256()
    written = _write_blocks(target, path, _digested(_blocks(file, size), digest), room)
    return BackupFile(path=path, bytes=written, sha256=digest.hexdigest())


def _written(target: Disk, path: str, data: bytes) -> BackupFile:
    with closing(target.open(path, create=True)) as file:
        file.write_at(0, data)
        file.flush()
    return BackupFile(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _damaged(path: str, why: str) -> StoreCorrupt:
    return StoreCorrupt("backup_damaged", "use another backup", path=path, why=why)
