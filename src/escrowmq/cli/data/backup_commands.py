"""``escrowmq backup`` and ``escrowmq restore``: copy a data directory, and make one from a copy."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.access.users import user_shape
from escrowmq.cli.access.users_file import read_users
from escrowmq.cli.asking import asking, at
from escrowmq.cli.config import load
from escrowmq.cli.data.data_directory import refuse_inside_store
from escrowmq.cli.options import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    FileOption,
    Output,
    OutputOption,
    StoppedDataOption,
)
from escrowmq.cli.output import as_facts, as_table, human_bytes, print_item
from escrowmq.cli.shapes.tool_shapes import BackupShape
from escrowmq.model.errors import RequestRefused, StoreCorrupt, StoreUnusable, Unavailable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.disk.disk import File, OsDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from escrowmq.cli.shapes.access_shapes import UserShape
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.operator_headers import CopyMetaAnswer
    from escrowmq.protocol.native.user_headers import UserRow
    from escrowmq.store.repair.backup import Manifest, Room

#: Name of the copy of meta.db that a broker makes.
COPY_NAME = "meta.copy"
#: Attempts to copy meta.db; a backup that runs at the same time may remove the copy.
COPIES_MAX = 10
#: Suffix of the directory that a restore fills before it gets its final name.
UNFINISHED = ".restoring"


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the backup; new or empty.")
    ],
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: StoppedDataOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Copy a broker's data while it runs.

    Run it on the broker's machine, as its user. The backup holds everything that was acknowledged
    before it began. Exit code 5: no backup was made, or the data that was read is damaged.
    """
    from escrowmq.store.repair.backup import refuse_unless_empty

    refuse_unless_empty(OsDisk(directory, read_only=True))
    if data is not None:
        _of_stopped(data, directory, output, dry_run=dry_run)
    else:
        back_up_running(directory, broker, output, dry_run=dry_run)


def back_up_running(
    directory: Path, broker: str, output: Output, *, copies: int = 1, dry_run: bool = False
) -> Room:
    """Copy the data of the broker at this address; return the room that copies must leave.

    Nothing is copied unless the disk has room for ``copies`` copies.
    """
    with asking(broker) as calls:
        told = _copied_meta(calls)
        _remove_copy(Path(told.path))
        data = Path(told.data_dir)
        room = room_beside(data, directory, told.free_bytes_min, copies)

        def copy_meta() -> Path:
            return Path(_copied_meta(calls).path)

        _back_up(data, directory, copy_meta, output, room, dry_run=dry_run)
    return room


def room_beside(data: Path, directory: Path, free_bytes_min: int, copies: int = 1) -> Room:
    """Return the room that a copy in this directory must leave for the broker of this data.

    A broker refuses messages when less than ``free_bytes_min`` is free on its own disk.
    """
    from escrowmq.store.repair.backup import Room

    here = _nearest(directory)
    is_same = here.stat().st_dev == data.stat().st_dev or _room_of(here) == _room_of(data)
    return Room(free_bytes_min=free_bytes_min if is_same else 0, copies=copies)


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    absolute = directory.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _room_of(path: Path) -> tuple[int, int]:
    """Return a pair that is equal for file systems that share one disk, such as subvolumes."""
    found = os.statvfs(path)
    return found.f_blocks, found.f_bfree


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the backup.")],
    *,
    data: Annotated[
        Path,
        typer.Option(
            "--data-dir", metavar="DIR", help="The data directory to create; new or empty."
        ),
    ],
    users_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Replace the users of the backup by those of this private file."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Create a data directory from a backup.

    Every user that comes back with it is printed: one that was deleted since is there again.
    Exit code 5: the backup is damaged or incomplete, or the data directory is not empty.
    """
    from escrowmq.cli.access.data_users import DataUsers
    from escrowmq.store.repair import backup as backups

    source = OsDisk(directory, read_only=True)
    backups.refuse_unless_empty(OsDisk(data, read_only=True))
    config = load(file=file, environ=os.environ)
    users = None if users_from is None else read_users(users_from)
    if dry_run:
        manifest, old = backups.verify(source), DataUsers(directory, config)
        shown = old.users() if users is None else old.planned(users)
        _show(manifest, output, "would restore", data, is_dry_run=True, users=shown)
        return
    # The rename comes last, so an interrupted restore leaves no data directory that looks complete.
    unfinished = data.absolute().with_name(data.name + UNFINISHED)
    if unfinished.exists():
        raise StoreUnusable(
            "target_not_empty",
            "an earlier restore was interrupted; remove this directory",
            path=str(unfinished),
        )
    try:
        manifest = backups.restore(source, OsDisk(unfinished))
        restored = DataUsers(unfinished, config)
        if users is not None:
            restored.replace_all(users)
        shown = restored.users()
        unfinished.rename(data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    OsDisk(data.absolute().parent).flush_directory("")
    _show(manifest, output, "restored", data, users=shown)


def _copied_meta(calls: NativeCalls) -> CopyMetaAnswer:
    """Make a running broker copy its meta.db; return its data directory and the copy's path."""
    path = ""
    for _ in range(COPIES_MAX):
        told: CopyMetaAnswer = calls.call(NativeCode.COPY_META).header
        path = told.path
        # All copies have the same name, so a concurrent backup may have removed this one.
        if Path(path).is_file():
            return told
    raise RequestRefused("broker_elsewhere", "run this on its machine, as its user", path=path)


def _of_stopped(data: Path, directory: Path, output: Output, *, dry_run: bool) -> None:
    from escrowmq.store.disk.lock import DirectoryLock
    from escrowmq.store.recovery.format import PATH as FORMAT
    from escrowmq.store.repair.backup import META, STORE, Room

    # Check before locking: the lock would leave a file in a directory that is not a data directory.
    if not (data / STORE / FORMAT).is_file():
        raise StoreUnusable("store_missing", "there is no store in this directory", path=str(data))
    with DirectoryLock(data):

        def copy_meta() -> Path:
            from escrowmq.store.meta.meta import Meta

            # Open it as the broker does, so that a write which a crash cut short is undone first.
            with closing(Meta(data / META)) as meta:
                return meta.copy()

        _back_up(data, directory, copy_meta, output, Room(), dry_run=dry_run)


def _back_up(
    data: Path,
    directory: Path,
    copy_meta: Callable[[], Path],
    output: Output,
    room: Room,
    *,
    dry_run: bool,
) -> None:
    from importlib.metadata import version

    from escrowmq.store.repair import backup as backups
    from escrowmq.store.repair import inspect

    refuse_inside_store(data, directory)
    source = OsDisk(data / backups.STORE, read_only=True)
    if dry_run:
        with closing(backups.pin(source)) as pinned:
            planned = BackupShape(
                directory=os.fspath(directory),
                made_at_ms=None,
                release=version("escrowmq"),
                log_start=pinned.log_start,
                log_end=pinned.log_end,
                files=None,
                bytes=pinned.log_end - pinned.log_start,
                users=None,
                is_dry_run=True,
            )
        room.check(OsDisk(_nearest(directory), read_only=True), planned.bytes * room.copies)
        size = human_bytes(planned.bytes)
        print_item(planned, output, lambda: f"would copy {size} of log from {data} to {directory}")
        return

    with _emptied_on_failure(directory):
        manifest = backups.take(
            source,
            OsDisk(directory),
            lambda: _opened(copy_meta),
            now_ms=time.time_ns() // 1_000_000,
            release=version("escrowmq"),
            room=room,
        )
        # Find a damaged log now, not during the restore.
        if inspect.check(OsDisk(directory / backups.STORE, read_only=True)).is_damaged:
            raise StoreCorrupt(
                "store_damaged", "run escrowmq store check on the data directory", path=str(data)
            )
    _show(manifest, output, "backed up", directory)


def _opened(copy_meta: Callable[[], Path]) -> File:
    """Open a copy of meta.db and unlink it, so that closing it frees its space."""
    for _ in range(COPIES_MAX):
        copy = copy_meta()
        with suppress(FileNotFoundError):
            file = OsDisk(copy.parent, read_only=True).open(copy.name)
            _remove_copy(copy)
            return file
    raise Unavailable("backup_overtaken", "other backups run at the same time; try again")


def _remove_copy(copy: Path) -> None:
    """Remove a copy of meta.db. A broker sent the path, so a file with another name stays."""
    if copy.name == COPY_NAME:
        copy.unlink(missing_ok=True)


@contextmanager
def _emptied_on_failure(directory: Path) -> Iterator[None]:
    """On failure, remove what the backup wrote into its directory, which was new or empty."""
    from escrowmq.store.repair.backup import MANIFEST, META, STORE, TEMPORARY

    was_there = directory.is_dir()
    try:
        yield
    except BaseException as error:
        is_foreign = isinstance(error, StoreUnusable) and error.code == "target_not_empty"
        if not is_foreign:
            shutil.rmtree(directory / STORE, ignore_errors=True)
            with suppress(OSError):
                for name in (META, MANIFEST, TEMPORARY):
                    (directory / name).unlink(missing_ok=True)
                if not was_there:
                    directory.rmdir()
        raise


def _show(
    manifest: Manifest,
    output: Output,
    done: str,
    place: Path,
    *,
    is_dry_run: bool = False,
    users: Sequence[UserRow] | None = None,
) -> None:
    backup = BackupShape.of(
        manifest,
        directory=os.fspath(place),
        files=len(manifest.files),
        bytes=manifest.size,
        users=None if users is None else list(map(user_shape, users)),
        is_dry_run=is_dry_run,
    )
    facts = {
        done: backup.directory,
        "made": at(backup.made_at_ms),
        "release": backup.release,
        "log": f"from {backup.log_start} up to {backup.log_end}",
        "files": backup.files,
        "size": human_bytes(backup.bytes),
    }
    print_item(backup, output, lambda: f"{as_facts(facts)}{_users_text(backup.users)}")


def _users_text(users: list[UserShape] | None) -> str:
    """Return the table of the users that come back; they can use the broker from its start on."""
    if not users:
        return ""
    rows = [
        (one.user, one.kind, one.is_enabled, ", ".join(one.roles), len(one.policies))
        for one in users
    ]
    return "\n\n" + as_table(("user", "kind", "enabled", "roles", "policies"), rows)
